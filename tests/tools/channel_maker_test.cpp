#include "tools/keeper/channels/channel_maker.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <map>
#include <set>

#include "base/check.hpp"
#include "ipc/channel_memory.hpp"
#include "tests/tools/footprint.hpp"

namespace kvhive::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::size_t bytes_in(int fd) {
  struct stat status {};
  KV_CHECK(fstat(fd, &status) == 0);
  return static_cast<std::size_t>(status.st_blocks) * 512;
}

class ChannelMakerTest : public ::testing::Test, public ChannelMaker::Events {
 protected:
  /// Helpers of the test before it have been killed, and nobody waited for them.
  void SetUp() override {
    while (waitpid(-1, nullptr, 0) > 0) {
    }
  }
  void on_made(std::uint64_t channel, Expected<UniqueFd> memory) override {
    made_.push_back(channel);
    if (memory)
      memory_[channel] = std::move(*memory);
    else
      errors_[channel] = memory.error();
    loop_.stop();
  }
  void on_freed(std::uint64_t channel) override {
    freed_.insert(channel);
    loop_.stop();
  }
  void free_some(std::uint64_t channel, uid_t user) {
    maker_.free(channel, user, make_channel_memory(kLeastChannelBytes).value(), kLeastChannelBytes);
  }
  void wait_for_events(std::size_t count) {
    while (made_.size() + freed_.size() < count) loop_.run();
  }

  EventLoop loop_ = EventLoop::create().value();
  std::vector<std::uint64_t> made_;  ///< in this order
  std::set<std::uint64_t> freed_;
  std::map<std::uint64_t, UniqueFd> memory_;
  std::map<std::uint64_t, Error> errors_;
  ChannelMaker maker_{loop_, *this};
};

TEST_F(ChannelMakerTest, MakesWhatAnEngineAndAClientCanOpen) {
  const std::size_t bytes = (std::size_t{20} << 20) + 4096;  // more than one piece
  maker_.make(1, 0, bytes);
  wait_for_events(1);
  EXPECT_GE(bytes_in(memory_[1].get()), bytes);
  const auto map = MappedMemory::map(memory_[1].get(), bytes, Access::read_write, "channel");
  ASSERT_TRUE(map.has_value()) << map.error().text;
  ChannelHeader header;
  std::memcpy(&header, map->data(), sizeof header);
  EXPECT_TRUE(check_channel_header(header, bytes).has_value());
}

TEST_F(ChannelMakerTest, FreesMemoryThatAClientStillHasOpen) {
  maker_.make(1, 0, kLeastChannelBytes * 20);
  wait_for_events(1);
  const UniqueFd kept(dup(memory_[1].get()));
  maker_.free(1, 0, std::move(memory_[1]), kLeastChannelBytes * 20);
  wait_for_events(2);
  EXPECT_TRUE(freed_.count(1));
  EXPECT_EQ(bytes_in(kept.get()), 0u);
}

TEST_F(ChannelMakerTest, SaysWhichEngineServesAndTheLastWordCounts) {
  maker_.make(1, 0, kLeastChannelBytes);
  wait_for_events(1);
  const UniqueFd memory(dup(memory_[1].get()));
  const auto serving = [&] {
    ChannelHeader header;
    KV_CHECK(pread(memory.get(), &header, sizeof header, 0) == sizeof header);
    return header.engine;
  };
  maker_.say_serving(0, 1, UniqueFd(dup(memory.get())), kNoEngine);
  maker_.say_serving(0, 1, UniqueFd(dup(memory.get())), 3);
  // The helper does what it is asked to in this order.
  free_some(2, 0);
  wait_for_events(2);
  EXPECT_EQ(serving(), 3u);
}

TEST_F(ChannelMakerTest, AHelperThatIsStuckCollectsNoDescriptors) {
  maker_.make(1, 0, kLeastChannelBytes);
  wait_for_events(1);
  const UniqueFd memory(dup(memory_[1].get()));
  free_some(2, 0);
  wait_for_events(2);
  const auto helpers = children_of(getpid());
  ASSERT_EQ(helpers.size(), 1u);
  ASSERT_EQ(kill(helpers.front(), SIGSTOP), 0);
  const std::size_t before = descriptors_of(getpid());
  for (std::uint32_t engine = 0; engine < 100; ++engine)
    maker_.say_serving(0, 1, UniqueFd(dup(memory.get())), engine);
  EXPECT_LE(descriptors_of(getpid()),
            before + 5);  // those that it has been sent, and the last word
  ASSERT_EQ(kill(helpers.front(), SIGCONT), 0);
  free_some(3, 0);
  wait_for_events(3);
  ChannelHeader header;
  ASSERT_EQ(pread(memory.get(), &header, sizeof header, 0), ssize_t{sizeof header});
  EXPECT_EQ(header.engine, 99u);
}

TEST_F(ChannelMakerTest, ManyUsersShareAFewHelpersAndTheOwnersDoNotWait) {
  constexpr std::uint64_t kUsers = FileHelpers::kMostHelpers + 8;
  for (std::uint64_t user = 1; user <= kUsers; ++user)
    free_some(user, static_cast<uid_t>(100'000 + user));
  EXPECT_EQ(children_of(getpid()).size(), FileHelpers::kMostHelpers);
  free_some(kUsers + 1, 0);
  EXPECT_EQ(children_of(getpid()).size(), FileHelpers::kMostHelpers + 1);
  while (!freed_.count(kUsers + 1)) loop_.run();
  EXPECT_LT(freed_.size(), kUsers + 1);
  wait_for_events(kUsers + 1);  // when idle helpers have ended
}

TEST_F(ChannelMakerTest, AUserWithMuchToMakeDoesNotDelayAnother) {
  for (std::uint64_t channel = 1; channel <= 8; ++channel)
    maker_.make(channel, 1000, std::size_t{64} << 20);
  maker_.make(9, 1001, kLeastChannelBytes);
  wait_for_events(1);
  EXPECT_THAT(made_, ElementsAre(9));
  for (std::uint64_t channel = 1; channel <= 8; ++channel) EXPECT_TRUE(maker_.cancel(channel));
  wait_for_events(9);
  EXPECT_EQ(freed_.size(), 8u);
  EXPECT_THAT(made_, ElementsAre(9));
}

TEST_F(ChannelMakerTest, WhatCannotBeMadeIsAnErrorAndLeavesNothing) {
  signal(SIGXFSZ, SIG_IGN);
  rlimit usual{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &usual), 0);
  const rlimit small{std::size_t{12} << 20, usual.rlim_max};  // the second piece does not fit
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  maker_.make(1, 0, std::size_t{64} << 20);
  wait_for_events(2);
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &usual), 0);
  EXPECT_THAT(errors_[1].text, HasSubstr("kvhive-channel"));
  EXPECT_TRUE(freed_.count(1));
  EXPECT_FALSE(maker_.cancel(1));
}

}  // namespace
}  // namespace kvhive::testing
