#include "tools/keeper/channels.hpp"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <set>
#include <tuple>

#include "base/check.hpp"
#include "ipc/channel_layout.hpp"

namespace kvhive::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr std::size_t kBytes = kLeastChannelBytes;
constexpr DomainId kDomain{7};
const MachineMemory kRoom{8 * kBytes, 8 * kBytes, "the machine"};

struct Told {
  int engine;
  MessageType type;
  std::uint64_t channel;
  friend bool operator==(const Told&, const Told&) = default;
  friend void PrintTo(const Told& told, std::ostream* out) {
    *out << "engine " << told.engine << " message " << std::uint32_t(told.type) << " channel "
         << told.channel;
  }
};

/// The channel table, with engines that record the messages to them, or have a full queue (deaf).
class ChannelsTest : public ::testing::Test, public EngineLine {
 protected:
  Expected<void> open(EngineKey engine, const ChannelOpen& message,
                      const std::vector<int>& fds) override {
    if (deaf_.count(engine) != 0) return failure(Errc::os_error, "queue full");
    said_.push_back({engine, MessageType::channel_open, message.channel});
    fds_.push_back(fds);
    domains_.push_back(message.domain);
    return {};
  }
  Expected<void> close(EngineKey engine, const ChannelClose& message) override {
    if (deaf_.count(engine) != 0) return failure(Errc::os_error, "queue full");
    said_.push_back({engine, MessageType::channel_close, message.channel});
    return {};
  }
  std::uint64_t create(std::uint32_t wanted = kAnyEngine) {
    return channels_.create(kBytes, wanted, kDomain, kRoom).value().id;
  }
  static Told opened(int engine, std::uint64_t channel) {
    return {engine, MessageType::channel_open, channel};
  }
  static Told closed(int engine, std::uint64_t channel) {
    return {engine, MessageType::channel_close, channel};
  }
  /// The messages to engines since the last call.
  std::vector<Told> said() { return std::exchange(said_, {}); }

  std::set<int> deaf_;
  std::vector<Told> said_;
  std::vector<std::vector<int>> fds_;
  std::vector<DomainId> domains_;
  Channels channels_{{4 * kBytes}};
};

TEST_F(ChannelsTest, AChannelWaitsForTheFirstEngine) {
  const std::uint64_t id = create();
  EXPECT_TRUE(channels_.place_waiting(*this)) << "without engines, no engine's queue is full";
  EXPECT_EQ(channels_.find(id)->engine, std::nullopt);
  EXPECT_THAT(said(), IsEmpty());
  channels_.add_engine(10, 0);
  EXPECT_TRUE(channels_.place_waiting(*this));
  EXPECT_EQ(channels_.find(id)->engine, 10);
  EXPECT_THAT(said(), ElementsAre(opened(10, id)));
  EXPECT_TRUE(channels_.place_waiting(*this));
  EXPECT_THAT(said(), IsEmpty()) << "the engine was told twice";
}

TEST_F(ChannelsTest, AnEngineGetsMemoryAndDoorbellOfTheSizeTheClientWasTold) {
  const auto created = channels_.create(kBytes + 1, kAnyEngine, kDomain, kRoom);
  ASSERT_TRUE(created.has_value());
  EXPECT_EQ(created->bytes, kBytes + 4096) << "whole pages";
  channels_.add_engine(10, 0);
  (void)channels_.place_waiting(*this);
  ASSERT_EQ(fds_.size(), 1u);
  ASSERT_EQ(fds_[0].size(), 3u);
  EXPECT_EQ(fds_[0][0], created->memory);
  EXPECT_EQ(fds_[0][1], fds_[0][2]);
  struct stat status {};
  ASSERT_EQ(fstat(created->memory, &status), 0);
  EXPECT_EQ(static_cast<std::size_t>(status.st_size), created->bytes);
}

TEST_F(ChannelsTest, ChannelsGoToTheEngineThatServesTheFewest) {
  channels_.add_engine(10, 0);
  channels_.add_engine(11, 1);
  for (int i = 0; i < 4; ++i) {
    create();
    (void)channels_.place_waiting(*this);
  }
  EXPECT_EQ(channels_.load_of(10), 2u);
  EXPECT_EQ(channels_.load_of(11), 2u);
}

TEST_F(ChannelsTest, AChannelThatWantsAnEngineWaitsForItEvenIfItIsBusyOrAbsent) {
  channels_.add_engine(11, 1);
  const std::uint64_t first = create(1), second = create(1), absent = create(0);
  channels_.add_engine(12, 2);
  (void)channels_.place_waiting(*this);
  EXPECT_THAT(said(), ElementsAre(opened(11, first), opened(11, second)));
  channels_.add_engine(10, 0);
  (void)channels_.place_waiting(*this);
  EXPECT_THAT(said(), ElementsAre(opened(10, absent)));
}

TEST_F(ChannelsTest, ADeadEnginesChannelsGoToAnother) {
  channels_.add_engine(10, 0);
  const std::uint64_t pinned = create(0), free = create();
  (void)channels_.place_waiting(*this);
  channels_.add_engine(11, 1);
  said();
  channels_.remove_engine(10);
  EXPECT_EQ(channels_.load_of(10), 0u);
  (void)channels_.place_waiting(*this);
  EXPECT_THAT(said(), ElementsAre(opened(11, free)));
  EXPECT_EQ(channels_.find(pinned)->engine, std::nullopt);
  channels_.add_engine(12, 0);  // the replacement has the same number but another key
  (void)channels_.place_waiting(*this);
  EXPECT_THAT(said(), ElementsAre(opened(12, pinned)));
}

TEST_F(ChannelsTest, EveryEngineThatGetsAChannelIsToldItsDomain) {
  const std::uint64_t id = create();
  channels_.add_engine(10, 0);
  (void)channels_.place_waiting(*this);
  channels_.add_engine(11, 1);
  channels_.remove_engine(10);
  (void)channels_.place_waiting(*this);
  EXPECT_THAT(said(), ElementsAre(opened(10, id), opened(11, id)));
  EXPECT_THAT(domains_, ElementsAre(kDomain, kDomain));
}

TEST_F(ChannelsTest, AChannelIsOfferedAgainToAnEngineWhoseQueueWasFull) {
  channels_.add_engine(10, 0);
  channels_.add_engine(11, 1);
  deaf_ = {10};
  const std::uint64_t to_deaf = create(0), to_other = create(1);
  EXPECT_FALSE(channels_.place_waiting(*this));
  EXPECT_THAT(said(), ElementsAre(opened(11, to_other)));
  EXPECT_FALSE(channels_.place_waiting(*this));
  deaf_ = {};
  EXPECT_TRUE(channels_.place_waiting(*this));
  EXPECT_THAT(said(), ElementsAre(opened(10, to_deaf)));
}

TEST_F(ChannelsTest, ClosingTellsTheEngineAndReturnsOneThatCannotBeTold) {
  channels_.add_engine(10, 0);
  const std::uint64_t first = create(), second = create(), waiting = create(5);
  (void)channels_.place_waiting(*this);
  said();
  EXPECT_EQ(channels_.close(first, *this), std::nullopt);
  EXPECT_THAT(said(), ElementsAre(closed(10, first)));
  deaf_ = {10};
  EXPECT_EQ(channels_.close(waiting, *this), std::nullopt) << "no engine has it";
  EXPECT_EQ(channels_.close(second, *this), 10);
  EXPECT_EQ(channels_.close(second, *this), std::nullopt)
      << "the channel was closed although its engine could not be told";
  EXPECT_FALSE(channels_.find(second).has_value());
}

TEST_F(ChannelsTest, ClosingAChannelThatWasTakenBackTellsNoEngine) {
  channels_.add_engine(10, 0);
  const std::uint64_t id = create();
  (void)channels_.place_waiting(*this);
  said();
  channels_.take_back(id);
  EXPECT_EQ(channels_.load_of(10), 0u);
  EXPECT_EQ(channels_.close(id, *this), std::nullopt);
  EXPECT_THAT(said(), IsEmpty());
  channels_.take_back(id);  // the channel is closed: nothing to do
}

TEST_F(ChannelsTest, TheChannelsHeaderNamesTheEngineThatServesIt) {
  const auto created = channels_.create(kBytes, kAnyEngine, kDomain, kRoom);
  ASSERT_TRUE(created.has_value());
  const auto serving = [&] {
    ChannelHeader header;
    KV_CHECK(pread(created->memory, &header, sizeof header, 0) == sizeof header);
    return header.engine;
  };
  EXPECT_EQ(serving(), kNoEngine);
  channels_.add_engine(10, 3);
  EXPECT_TRUE(channels_.place_waiting(*this));
  EXPECT_EQ(serving(), 3u);
  (void)channels_.remove_engine(10);
  EXPECT_EQ(serving(), kNoEngine) << "the engine has died";
  channels_.add_engine(11, 4);
  EXPECT_TRUE(channels_.place_waiting(*this));
  EXPECT_EQ(serving(), 4u);
  channels_.take_back(created->id);
  EXPECT_EQ(serving(), kNoEngine) << "the engine has refused the channel";
}

TEST_F(ChannelsTest, TheChannelsOfAllClientsHaveAQuota) {
  std::vector<std::uint64_t> ids;
  for (int i = 0; i < 4; ++i) ids.push_back(create());
  const auto refused = channels_.create(kBytes, kAnyEngine, kDomain, kRoom);
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, Errc::pool_exhausted);
  EXPECT_THAT(refused.error().text, HasSubstr("the daemon grants 4.00 MiB"));
  EXPECT_THAT(refused.error().text, HasSubstr("--channel-bytes"));
  (void)channels_.close(ids[2], *this);
  EXPECT_TRUE(channels_.create(kBytes, kAnyEngine, kDomain, kRoom).has_value());
}

TEST_F(ChannelsTest, AClosedChannelKeepsNoMemory) {
  const auto created = channels_.create(kBytes, kAnyEngine, kDomain, kRoom);
  ASSERT_TRUE(created);
  const UniqueFd kept(dup(created->memory));
  const auto bytes = [&] {
    struct stat status {};
    KV_CHECK(fstat(kept.get(), &status) == 0);
    return static_cast<std::size_t>(status.st_blocks) * 512;
  };
  EXPECT_GE(bytes(), kBytes);
  (void)channels_.close(created->id, *this);
  EXPECT_EQ(bytes(), 0u);
}

TEST_F(ChannelsTest, TheChannelsOfOneDomainHaveAQuota) {
  Channels channels({.of_all = 4 * kBytes, .of_domain = 2 * kBytes});
  const auto create = [&](std::uint16_t domain) {
    return channels.create(kBytes, kAnyEngine, DomainId{domain}, kRoom);
  };
  const auto first = create(1);
  EXPECT_TRUE(first && create(1));
  const auto refused = create(1);
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, Errc::pool_exhausted);
  EXPECT_THAT(refused.error().text, HasSubstr("would have 3.00 MiB, channel-bytes-per-domain "
                                              "grants 2.00 MiB"));
  EXPECT_TRUE(create(2));
  (void)channels.close(first->id, *this);
  EXPECT_TRUE(create(1));
}

TEST_F(ChannelsTest, AChannelAboveTheAvailableMemoryIsRefusedAndTheLimitNamed) {
  MachineMemory machine{8 * kBytes, 2 * kBytes, "cgroup /a (memory.max)"};
  Channels channels({8 * kBytes});
  EXPECT_TRUE(channels.create(2 * kBytes, kAnyEngine, DomainId{0}, machine).has_value());
  const auto refused = channels.create(2 * kBytes + 1, kAnyEngine, DomainId{0}, machine);
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, Errc::out_of_memory);
  EXPECT_THAT(refused.error().text, HasSubstr("cgroup /a (memory.max) has 2.00 MiB available"));
  machine.available = 3 * kBytes;
  EXPECT_TRUE(channels.create(2 * kBytes + 1, kAnyEngine, DomainId{0}, machine).has_value());
}

TEST_F(ChannelsTest, SizesOutOfBoundsAreRefused) {
  for (const std::size_t bytes :
       {std::size_t{0}, kBytes - 1, kMostChannelBytes + 1, ~std::size_t{0}}) {
    const auto refused = channels_.create(bytes, kAnyEngine, kDomain, kRoom);
    ASSERT_FALSE(refused.has_value()) << bytes;
    EXPECT_EQ(refused.error().code, Errc::bad_argument);
    EXPECT_THAT(refused.error().text, HasSubstr("out of bounds"));
  }
}

}  // namespace
}  // namespace kvhive::testing
