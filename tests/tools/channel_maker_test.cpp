#include "tools/keeper/channels/channel_maker.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <map>
#include <set>

#include "base/check.hpp"
#include "ipc/channel/client_channel.hpp"
#include "ipc/channel/engine_channel.hpp"
#include "tests/support/board.hpp"
#include "tests/support/channel_memory.hpp"
#include "tests/support/merge_pages.hpp"

namespace kvhive::testing {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::size_t bytes_in(int fd) {
  struct stat status {};
  KV_CHECK(fstat(fd, &status) == 0);
  return static_cast<std::size_t>(status.st_blocks) * 512;
}

class ChannelMakerTest : public ::testing::Test, public ChannelMaker::Events {
 protected:
  void on_made(std::uint64_t channel, Expected<ChannelMemory> memory) override {
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
  void wait_for_events(std::size_t count) {
    while (made_.size() + freed_.size() < count) loop_.run();
  }

  EventLoop loop_ = EventLoop::create().value();
  std::vector<std::uint64_t> made_;  ///< in this order
  std::set<std::uint64_t> freed_;
  std::map<std::uint64_t, ChannelMemory> memory_;
  std::map<std::uint64_t, Error> errors_;
  ChannelMaker maker_{loop_, *this};
};

TEST_F(ChannelMakerTest, MakesWhatAnEngineAndAClientCanOpen) {
  const std::size_t bytes = (std::size_t{20} << 20) + 4096;  // more than one piece
  maker_.make(1, 0, bytes);
  wait_for_events(1);
  const auto& [requests, answers, pins] = memory_[1];
  EXPECT_EQ(pins.size(), 1u);
  EXPECT_GE(bytes_in(answers.get()), bytes);
  EXPECT_EQ(bytes_in(requests.get()), 0u) << "the client brings its own memory";
  EXPECT_TRUE(EngineChannel::open(1, TestBoard().join(), copy_of(requests), answers, bytes,
                                  direct_ring(UniqueFd())));
  EXPECT_TRUE(ClientChannel::open(copy_of(requests), answers, bytes, UniqueFd()));
}

TEST_F(ChannelMakerTest, FreesMemoryThatAClientStillHasOpen) {
  maker_.make(1, 0, kLeastChannelBytes * 20);
  wait_for_events(1);
  const UniqueFd kept = reopen_read_only(memory_[1].answers.get()).value();
  maker_.free(1, 0, std::move(memory_[1]), kLeastChannelBytes * 20);
  wait_for_events(2);
  EXPECT_TRUE(freed_.count(1));
  EXPECT_EQ(bytes_in(kept.get()), 0u);
}

TEST_F(ChannelMakerTest, AClientCannotHaveTheAnswersPagesMerged) {
  if (!this_system_merges_pages()) GTEST_SKIP() << "NOT RUN: this system merges no pages";
  maker_.make(1, 0, kManyExtents);
  wait_for_events(1);
  const UniqueFd& answers = memory_[1].answers;
  std::memset(
      MappedMemory::map(answers.get(), kManyExtents, Access::read_write, "").value().data() +
          sizeof(ChannelHeader),
      1, kManyExtents - sizeof(ChannelHeader));
  EXPECT_THAT(merge_all(answers), Each(EAGAIN));
}

TEST_F(ChannelMakerTest, AUserWithMuchToMakeDoesNotDelayAnother) {
  for (std::uint64_t channel = 1; channel <= 8; ++channel)
    maker_.make(channel, 1000, kMostChannelBytes);
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
  EXPECT_THAT(errors_[1].text, HasSubstr("kvhive-answers"));
  EXPECT_TRUE(freed_.count(1));
  EXPECT_FALSE(maker_.cancel(1));
}

}  // namespace
}  // namespace kvhive::testing
