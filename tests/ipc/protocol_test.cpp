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

/// While it lives, this process can open nothing more.
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
  void send(MessageType type, std::uint64_t channel, const std::vector<int>& fds = {}) {
    Message message;
    message.type = type;
    message.channel = channel;
    ASSERT_TRUE(send_packet(there_.get(), message, fds).has_value());
  }
  Packet receive() {
    auto packet = receive_packet(here_.get());
    KV_CHECK(packet && *packet);
    return std::move(**packet);
  }

  UniqueFd here_, there_;
};

TEST_F(ProtocolTest, APacketArrivesWithItsDescriptors) {
  send(MessageType::channel_open, 7, {0, 1, 2});
  const Packet packet = receive();
  EXPECT_EQ(packet.message.channel, 7u);
  EXPECT_EQ(packet.fds.size(), 3u);
  EXPECT_FALSE(packet.lost_fds);
}

TEST_F(ProtocolTest, APacketWhoseDescriptorsDoNotFitIsNotTheEndOfTheConversation) {
  send(MessageType::channel_open, 7, {0, 1, 2});
  send(MessageType::channel_close, 8);
  {
    const NoDescriptorsLeft while_this_lives;
    const Packet packet = receive();
    EXPECT_EQ(packet.message.type, MessageType::channel_open);
    EXPECT_EQ(packet.message.channel, 7u);
    EXPECT_TRUE(packet.lost_fds);
    EXPECT_LT(packet.fds.size(), 3u);
  }
  const Packet next = receive();
  EXPECT_EQ(next.message.channel, 8u);
  EXPECT_FALSE(next.lost_fds);
}

TEST_F(ProtocolTest, AShortPacketIsMalformed) {
  ASSERT_EQ(::send(there_.get(), "hello", 5, 0), 5);
  const auto packet = receive_packet(here_.get());
  ASSERT_FALSE(packet.has_value());
  EXPECT_EQ(packet.error().code, Errc::bad_format);
}

TEST_F(ProtocolTest, AnotherVersionIsNamed) {
  Message message;
  message.version = 77;
  for (const std::size_t bytes : {sizeof message, sizeof message - 64}) {  // its size is its own
    ASSERT_EQ(::send(there_.get(), &message, bytes, 0), static_cast<ssize_t>(bytes));
    const auto packet = receive_packet(here_.get());
    ASSERT_FALSE(packet.has_value());
    EXPECT_EQ(packet.error().code, Errc::layout_mismatch);
    EXPECT_THAT(packet.error().text, HasSubstr("protocol 77"));
  }
}

TEST_F(ProtocolTest, AHangupIsNoPacket) {
  there_ = UniqueFd();
  const auto packet = receive_packet(here_.get());
  ASSERT_TRUE(packet.has_value());
  EXPECT_FALSE(packet->has_value());
}

}  // namespace
}  // namespace kvhive::testing
