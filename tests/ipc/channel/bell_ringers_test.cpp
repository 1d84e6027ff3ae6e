#include "ipc/channel/bell_ringers.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/epoll.h>
#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <ctime>
#include <functional>
#include <list>
#include <map>
#include <set>
#include <thread>

#include "base/check.hpp"
#include "tests/support/herd.hpp"

namespace kvhive::testing {
namespace {

using ::testing::HasSubstr;

constexpr std::uint32_t kSlowUser = 7, kOther = 8;

/// Computes for longer than a ring of a few microseconds ever does.
void compute() {
  const auto milliseconds = [] {
    timespec time{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return time.tv_sec * 1000 + time.tv_nsec / 1'000'000;
  };
  const auto end = milliseconds() + 5;
  while (milliseconds() < end) continue;
}

/// Ringers whose rings are recorded. A ring of a bell in `slow` computes; one of a bell in `stuck`
/// goes on until release().
class BellRingersTest : public ::testing::Test {
 protected:
  struct Line {
    int fd = -1;
    std::unique_ptr<ClientRing> ring;
  };
  ~BellRingersTest() override {
    release();
    lines_.clear();
  }

  Line& line(std::uint32_t user) {
    UniqueFd end = make_client_bell().value().engine_end;
    auto& line = lines_.emplace_back();
    line.fd = end.get();
    line.ring = ringers_.ring_for(user, std::move(end)).value();
    return line;
  }
  void ring(int fd) {
    std::unique_lock lock(mutex_);
    ++begun_[fd];
    most_at_once_ = std::max(most_at_once_, ++at_once_[fd]);
    if (slow_.count(fd) != 0) compute();
    changed_.notify_all();
    if (on_ring_) on_ring_(fd);
    changed_.wait(lock, [&] { return stuck_.count(fd) == 0 || is_released_; });
    --at_once_[fd];
    ++done_[fd];
    changed_.notify_all();
  }
  void release() {
    const std::lock_guard lock(mutex_);
    is_released_ = true;
    changed_.notify_all();
  }
  /// Gives up after twenty seconds, so that a mistake does not hang the test.
  bool comes(const std::function<bool()>& holds) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::seconds(20), holds);
  }
  bool begins(const Line& line, int rings = 1) {
    return comes([&] { return begun_[line.fd] == rings; });
  }
  bool ends(const Line& line, int rings = 1) {
    return comes([&] { return done_[line.fd] == rings; });
  }
  /// Rings each of the lines slowly, so that the ringers know their users as slow.
  void show_as_slow(std::initializer_list<Line*> lines) {
    for (Line* line : lines) {
      slow_.insert(line->fd);
      line->ring->ring();
      ASSERT_TRUE(ends(*line));
      slow_.erase(line->fd);
    }
  }
  void stick(const Line& line) {
    const std::lock_guard lock(mutex_);
    stuck_.insert(line.fd);
  }
  /// A client of this user whose ring is under way until release().
  Line& line_that_is_rung(std::uint32_t user) {
    Line& rung = line(user);
    stick(rung);
    rung.ring->ring();
    KV_CHECK(begins(rung), user);
    return rung;
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<int, int> begun_, done_, at_once_;  ///< rings by bell
  int most_at_once_ = 0;
  std::set<int> slow_, stuck_;
  bool is_released_ = false;
  std::function<void(int)> on_ring_;
  std::chrono::nanoseconds rested_{};
  BellRingers ringers_{[this](int fd) { ring(fd); },
                       [this](std::chrono::nanoseconds time) {
                         const std::lock_guard lock(mutex_);
                         rested_ += time;
                         changed_.notify_all();
                       }};
  std::list<Line> lines_;
};

TEST_F(BellRingersTest, AUserWhoseRingIsUnderWayDelaysNoOther) {
  Line &slow = line_that_is_rung(kSlowUser), &other = line(kOther);
  for (int i = 1; i <= 10; ++i) {
    other.ring->ring();
    ASSERT_TRUE(ends(other, i));
  }
  EXPECT_EQ(done_[slow.fd], 0);
}

TEST_F(BellRingersTest, AUserWithManyChannelsHasOneRingUnderWay) {
  line_that_is_rung(kSlowUser);
  std::vector<Line*> more;
  for (int i = 0; i < 8; ++i) more.push_back(&line(kSlowUser));
  for (Line* bell : more) bell->ring->ring();
  Line& other = line(kOther);
  other.ring->ring();
  ASSERT_TRUE(ends(other));
  for (Line* bell : more) EXPECT_EQ(begun_[bell->fd], 0);
  release();
  for (Line* bell : more) EXPECT_TRUE(ends(*bell));
}

/// More users than there are threads.
TEST_F(BellRingersTest, UsersWhoAreKnownAsSlowDoNotDelayOthers) {
  Line &a = line(1), &b = line(2), &c = line(3), &d = line(4);
  show_as_slow({&a, &b, &c, &d});
  for (Line* bell : {&a, &b, &c, &d}) {
    stick(*bell);
    bell->ring->ring();
  }
  ASSERT_TRUE(begins(a, 2));
  Line& other = line(kOther);
  other.ring->ring();
  EXPECT_TRUE(ends(other));
  for (Line* bell : {&a, &b, &c, &d}) EXPECT_EQ(done_[bell->fd], 1);
  release();
  for (Line* bell : {&a, &b, &c, &d}) EXPECT_TRUE(ends(*bell, 2));
}

TEST_F(BellRingersTest, RingsThatWereQueuedBeforeTheirUserWasSlowDelayNobodyEither) {
  Line& first = line(kSlowUser);
  slow_.insert(first.fd);
  stick(first);
  first.ring->ring();
  ASSERT_TRUE(begins(first));
  std::vector<Line*> more;
  for (int i = 0; i < 3; ++i) more.push_back(&line(kSlowUser));
  for (Line* bell : more) bell->ring->ring();
  Line &second = line(kSlowUser + 10), &other = line(kOther);
  stick(second);
  second.ring->ring();
  ASSERT_TRUE(begins(second)) << "both threads for users who are not slow have a ring under way";
  stick(*more[0]);
  {
    const std::lock_guard lock(mutex_);
    stuck_.erase(first.fd);
    changed_.notify_all();
  }
  ASSERT_TRUE(begins(*more[0]));
  other.ring->ring();
  EXPECT_TRUE(ends(other));
  EXPECT_EQ(done_[more[0]->fd], 0);
}

TEST_F(BellRingersTest, AUserIsSlowNoLongerThanItsRings) {
  Line &once_slow = line(1), &still_slow = line(2);
  show_as_slow({&once_slow, &still_slow});
  once_slow.ring->ring();
  ASSERT_TRUE(ends(once_slow, 2));
  stick(still_slow);
  still_slow.ring->ring();
  ASSERT_TRUE(begins(still_slow, 2));
  once_slow.ring->ring();
  EXPECT_TRUE(ends(once_slow, 3));
}

/// While the kernel walks a long list, nothing else runs on that processor.
TEST_F(BellRingersTest, AfterASlowRingItsThreadRestsForMuchLonger) {
  Line& bell = line(kSlowUser);
  show_as_slow({&bell});
  EXPECT_EQ(rested_.count(), 0) << "a thread that others wait for must not rest";
  slow_.insert(bell.fd);
  bell.ring->ring();
  EXPECT_TRUE(comes([&] { return rested_ >= 9 * std::chrono::milliseconds(4); }));
}

TEST_F(BellRingersTest, RingsThatWaitAreOne) {
  line_that_is_rung(kSlowUser);
  Line& bell = line(kSlowUser);
  for (int i = 0; i < 100; ++i) bell.ring->ring();
  Line& last = line(kSlowUser);
  last.ring->ring();
  release();
  ASSERT_TRUE(ends(last));
  EXPECT_EQ(done_[bell.fd], 1);
}

/// What is written while the client is being rung, it may not see: it may have woken before.
TEST_F(BellRingersTest, ARingDuringARingIsNotForgotten) {
  Line& bell = line_that_is_rung(kSlowUser);
  bell.ring->ring();
  release();
  EXPECT_TRUE(ends(bell, 2));
}

/// Closing the last descriptor of a bell wakes all that hangs on it, too.
TEST_F(BellRingersTest, ABellIsClosedInTurnWithItsUsersRings) {
  ClientBell pair = make_client_bell().value();
  auto leaving = ringers_.ring_for(kSlowUser, std::move(pair.engine_end)).value();
  line_that_is_rung(kSlowUser);
  leaving.reset();
  EXPECT_TRUE(answer_client_bell(pair.client_end.get())) << "it is open";
  release();
  Line& last = line(kSlowUser);
  last.ring->ring();
  ASSERT_TRUE(ends(last));
  EXPECT_FALSE(answer_client_bell(pair.client_end.get())) << "it is closed";
}

TEST_F(BellRingersTest, AUserThatLeavesFasterThanItsBellsCloseIsRefused) {
  line_that_is_rung(kSlowUser);
  const auto refusal = [this] {
    while (true) {
      auto ring = ringers_.ring_for(kSlowUser, make_client_bell().value().engine_end);
      if (!ring) return ring.error();
    }
  };
  const Error error = refusal();
  EXPECT_EQ(error.code, Errc::pool_exhausted);
  EXPECT_THAT(error.text, HasSubstr("256 bells of channels that user 7 has left"));
  EXPECT_TRUE(ringers_.ring_for(kOther, UniqueFd()).has_value());
}

TEST_F(BellRingersTest, LeavesTheProcessorsToTheThreadsThatServe) {
  const int own = getpriority(PRIO_PROCESS, 0);
  int its = own;
  on_ring_ = [&](int) { its = getpriority(PRIO_PROCESS, 0); };
  Line& bell = line(kOther);
  bell.ring->ring();
  ASSERT_TRUE(ends(bell));
  EXPECT_EQ(its, std::min(own + 10, 19));
}

/// The kernel wakes what a client hangs on its bell in the thread that rings.
TEST(BellRingers, AHerdOnABellCostsTheRingersWhatItWouldCostTheEngine) {
  ClientBell bell = make_client_bell().value();
  const Herd herd(bell.client_end.get(), 100, 100);
  EXPECT_EQ(herd.waiting(), 10'000u);
  BellRingers ringers;
  auto ring = ringers.ring_for(kSlowUser, std::move(bell.engine_end)).value();
  ring->ring();
  epoll_event event{};
  for (const UniqueFd& epoll : herd.epolls()) EXPECT_EQ(epoll_wait(epoll.get(), &event, 1, -1), 1);
  EXPECT_TRUE(answer_client_bell(bell.client_end.get()));
}

}  // namespace
}  // namespace kvhive::testing
