#include "base/loop/background_worker.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <future>
#include <string>

namespace kvhive::testing {
namespace {

using ::testing::ElementsAre;

TEST(BackgroundWorker, KeysTakeTurnsAndSoDoTheJobsOfAKey) {
  std::promise<void> all_are_added, done;
  std::vector<std::string> pieces;
  BackgroundWorker worker;
  const auto job = [&](std::string name, int count) {
    return [&pieces, name, count, piece = 0]() mutable {
      pieces.push_back(name + std::to_string(++piece));
      return piece == count;
    };
  };
  worker.add(0, [&] {
    all_are_added.get_future().wait();
    return true;
  });
  worker.add(1, job("a", 3));
  worker.add(1, job("b", 1));
  worker.add(2, job("c", 2));
  worker.add(3, [&, pieces_left = 5]() mutable {
    if (--pieces_left == 0) done.set_value();
    return pieces_left == 0;
  });
  all_are_added.set_value();
  done.get_future().wait();
  EXPECT_THAT(pieces, ElementsAre("a1", "c1", "b1", "c2", "a2", "a3"));
}

TEST(BackgroundWorker, LeavesTheProcessorsToOtherThreads) {
  // Niceness of 19 is the most that there is.
  const int own = getpriority(PRIO_PROCESS, 0);
  std::promise<int> its;
  BackgroundWorker worker;
  worker.add(1, [&] {
    its.set_value(getpriority(PRIO_PROCESS, 0));
    return true;
  });
  EXPECT_EQ(its.get_future().get(), std::min(own + 10, 19));
  EXPECT_EQ(getpriority(PRIO_PROCESS, 0), own);
}

TEST(BackgroundWorker, DropsWhatIsLeftWhenItEnds) {
  std::promise<void> has_begun;
  const auto token = std::make_shared<int>();
  {
    BackgroundWorker worker;
    worker.add(1, [&, is_first = true]() mutable {
      if (std::exchange(is_first, false)) has_begun.set_value();
      return false;  // would go on for ever
    });
    worker.add(1, [token] { return true; });
    has_begun.get_future().wait();
  }
  EXPECT_EQ(token.use_count(), 1);
}

}  // namespace
}  // namespace kvhive::testing
