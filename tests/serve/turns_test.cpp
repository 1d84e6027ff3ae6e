#include <gmock/gmock.h>

#include <future>
#include <stdexcept>
#include <string>
#include <vector>

#include "tools/serve/turns/background.hpp"

namespace kvhive {
namespace {

using ::testing::ElementsAre;
using Kind = Turn::Kind;

std::vector<std::string> all_of(TurnQueue<std::string>& queue) {
  std::vector<std::string> order;
  while (!queue.empty()) order.push_back(queue.pop());
  return order;
}

TEST(TurnQueue, ACallersOwnWorkIsDoneInItsOrder) {
  TurnQueue<std::string> queue;
  for (const char* job : {"a", "b", "c"}) queue.push({}, job);
  EXPECT_EQ(queue.size(), 3u);
  EXPECT_THAT(all_of(queue), ElementsAre("a", "b", "c"));
}

TEST(TurnQueue, CallersTakeTurns) {
  TurnQueue<std::string> queue;
  for (const char* job : {"a1", "a2", "a3"}) queue.push({Kind::answer, 1}, job);
  queue.push({Kind::answer, 2}, "b1");
  queue.push({Kind::answer, 2}, "b2");
  queue.push({Kind::answer, 3}, "c1");
  EXPECT_EQ(queue.pop(), "a1");
  queue.push({Kind::answer, 2}, "b3");
  EXPECT_THAT(all_of(queue), ElementsAre("b1", "c1", "a2", "b2", "a3", "b3"));
}

/// Whatever waits, an answer's work waits for one other job.
TEST(TurnQueue, WorkForAnswersWaitsForOneOtherJob) {
  TurnQueue<std::string> queue;
  for (std::size_t caller = 0; caller < 6; ++caller) queue.push({Kind::other, caller}, "count");
  EXPECT_EQ(queue.pop(), "count");
  queue.push({Kind::answer, 0}, "answer");
  EXPECT_EQ(queue.pop(), "answer");
  queue.push({Kind::answer, 0}, "answer");
  EXPECT_EQ(queue.pop(), "count");
  EXPECT_EQ(queue.pop(), "answer");
  for (int i = 0; i < 3; ++i) queue.push({Kind::answer, 0}, "answer");
  EXPECT_EQ(queue.pop(), "count") << "nor does an answer's work keep others out";
}

/// Runs the loop until all of `jobs` jobs are done, and tells in which order.
class BackgroundTest : public ::testing::Test {
 protected:
  Background::Job job(const std::string& name, std::size_t bytes = 0) {
    return {bytes, [] { return true; }, [] {}, [this, name] { done_.push_back(name); }};
  }
  void run_until_done(std::size_t jobs) {
    const auto work = boost::asio::make_work_guard(loop_);
    loop_.restart();
    while (done_.size() < jobs) loop_.run_one();
  }

  boost::asio::io_context loop_{1};
  std::vector<std::string> done_;
};

TEST_F(BackgroundTest, AFloodOfOtherWorkDelaysAnAnswerByOneJob) {
  Background background(loop_);
  std::promise<void> go;
  Background::Job first = job("first");
  first.work = [&] { go.get_future().wait(); };
  background.run({Kind::other, 1}, first);
  for (int i = 0; i < 6; ++i) background.run({Kind::other, 1}, job("count"));
  background.run({Kind::answer, 2}, job("answer"));
  go.set_value();
  run_until_done(8);
  EXPECT_EQ(done_[0], "first");
  EXPECT_EQ(done_[1], "answer");
}

TEST_F(BackgroundTest, ShortWorkDoesNotWaitForLong) {
  Background background(loop_);
  std::promise<void> go;
  Background::Job slow = job("long", Background::kShortBytes + 1);
  slow.work = [&] { go.get_future().wait(); };
  background.run({}, slow);
  background.run({}, job("short"));
  run_until_done(1);
  EXPECT_THAT(done_, ElementsAre("short"));
  go.set_value();
  run_until_done(2);
}

TEST_F(BackgroundTest, WhatWorkThrowsTheLoopThrowsAndTheNextIsDone) {
  Background background(loop_);
  Background::Job failing = job("failing");
  failing.work = [] { throw std::runtime_error("a mistake"); };
  background.run({}, failing);
  background.run({}, job("next"));
  EXPECT_THROW(run_until_done(1), std::runtime_error);
  run_until_done(1);
  EXPECT_THAT(done_, ElementsAre("next"));
}

TEST_F(BackgroundTest, WhatNobodyWaitsForIsNotDone) {
  Background background(loop_);
  bool was_done = false;
  Background::Job left = job("left");
  left.is_wanted = [] { return false; };
  left.work = [&] { was_done = true; };
  background.run({}, left);
  background.run({}, job("next"));
  run_until_done(1);
  EXPECT_THAT(done_, ElementsAre("next"));
  EXPECT_FALSE(was_done);
}

}  // namespace
}  // namespace kvhive
