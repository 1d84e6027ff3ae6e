#include "ipc/protocol.hpp"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/check.hpp"

namespace kvhive::testing {
namespace {

using ::testing::HasSubstr;

/// While an object of this class exists, this process cannot open another descriptor.
class NoDescriptorsLeft {
 public:
  NoDescriptorsLeft() {
    KV_CHECK(getrlimit(RLIMIT_NOFILE, &before_) == 0);
    const UniqueFd lowest_free{dup(0)};
    const rlimit limit{static_cast<rlim_t>(lowest_free.get()), before_.rlim_max};
    KV_CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0);
  }
  ~NoDescriptorsLeft() { setrlimit(RLIMIT_NOFILE, &before_); }

 private:
  rlimit before_{};
};

class ProtocolTest : public ::testing::Test {
 protected:
  ProtocolTest() {
    int ends[2];
    KV_CHECK(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) == 0);
    here_ = UniqueFd(ends[0]);
    there_ = UniqueFd(ends[1]);
  }
  void send_raw(const void* bytes, std::size_t size) const {
    ASSERT_EQ(::send(there_.get(), bytes, size, 0), static_cast<ssize_t>(size));
  }
  Error receive_error() const {
    const auto packet = receive_packet(here_.get());
    EXPECT_FALSE(packet.has_value());
    return packet ? Error{} : packet.error();
  }
  Packet receive() {
    auto packet = receive_packet(here_.get());
    KV_CHECK(packet && *packet);
    return std::move(**packet);
  }

  UniqueFd here_, there_;
};

TEST_F(ProtocolTest, APacketArrivesWithItsDescriptors) {
  ASSERT_TRUE(send_packet(there_.get(), ChannelOpen{.channel = 7}, {0, 1, 2}, "tail").has_value());
  const Packet packet = receive();
  ASSERT_TRUE(packet.as<ChannelOpen>().has_value());
  EXPECT_EQ(packet.as<ChannelOpen>()->channel, 7u);
  EXPECT_EQ(packet.tail(), "tail");
  EXPECT_EQ(packet.fds.size(), 3u);
  EXPECT_FALSE(packet.lost_fds);
}

TEST_F(ProtocolTest, APacketThatLosesDescriptorsArrivesAndSoDoesTheNextOne) {
  ASSERT_TRUE(send_packet(there_.get(), ChannelOpen{.channel = 7}, {0, 1, 2}).has_value());
  ASSERT_TRUE(send_packet(there_.get(), ChannelClose{8}).has_value());
  {
    const NoDescriptorsLeft while_this_lives;
    const Packet packet = receive();
    ASSERT_TRUE(packet.is(MessageType::channel_open));
    EXPECT_EQ(packet.as<ChannelOpen>()->channel, 7u);
    EXPECT_TRUE(packet.lost_fds);
    EXPECT_LT(packet.fds.size(), 3u);
  }
  const Packet next = receive();
  EXPECT_EQ(next.as<ChannelClose>()->channel, 8u);
  EXPECT_FALSE(next.lost_fds);
}

TEST_F(ProtocolTest, AShortPacketIsMalformed) {
  send_raw("hello", 5);
  EXPECT_EQ(receive_error().code, Errc::bad_format);
}

TEST_F(ProtocolTest, AMessageIsReadAsItsOwnTypeOnly) {
  ASSERT_TRUE(send_packet(there_.get(), ChannelClose{8}).has_value());
  const Packet packet = receive();
  EXPECT_FALSE(packet.as<Repaired>().has_value()) << "Repaired has the same size as ChannelClose";
  EXPECT_TRUE(packet.as<ChannelClose>().has_value());
}

TEST_F(ProtocolTest, AnUnknownTypeIsMalformed) {
  const PacketHeader header{.type = MessageType(99)};
  send_raw(&header, sizeof header);
  const Error error = receive_error();
  EXPECT_EQ(error.code, Errc::bad_format);
  EXPECT_THAT(error.text, HasSubstr("type 99"));
}

TEST_F(ProtocolTest, APayloadOfAnotherSizeThanItsTypesIsMalformed) {
  struct {
    PacketHeader header;
    ChannelClose message;
  } packet;
  packet.header.type = ChannelClose::kType;
  for (const std::uint32_t told : {0u, 7u, 9u, ~0u}) {
    packet.header.payload_bytes = told;
    send_raw(&packet, sizeof packet);
    EXPECT_EQ(receive_error().code, Errc::bad_format) << told;
  }
  packet.header.payload_bytes = sizeof packet.message;
  send_raw(&packet, sizeof packet - 1);
  EXPECT_EQ(receive_error().code, Errc::bad_format) << "one byte is missing";
}

TEST_F(ProtocolTest, ATextWithoutATerminatorEndsWithItsArray) {
  FixedText<8> text("exactly so long");
  EXPECT_EQ(text.str(), "exactly");
  std::memset(static_cast<void*>(&text), 'x', sizeof text);
  EXPECT_EQ(text.str(), "xxxxxxxx");
}

TEST_F(ProtocolTest, AnotherVersionIsNamedInTheError) {
  std::array<PacketHeader, 64> packet;
  packet[0].version = 77;
  // Another version may have a header of another size.
  for (const std::size_t bytes : {sizeof packet, std::size_t{8}}) {
    send_raw(&packet, bytes);
    const Error error = receive_error();
    EXPECT_EQ(error.code, Errc::layout_mismatch);
    EXPECT_THAT(error.text, HasSubstr("protocol 77"));
  }
}

TEST_F(ProtocolTest, AClosedConnectionGivesNoPacket) {
  there_ = UniqueFd();
  const auto packet = receive_packet(here_.get());
  ASSERT_TRUE(packet.has_value());
  EXPECT_FALSE(packet->has_value());
}

}  // namespace
}  // namespace kvhive::testing
