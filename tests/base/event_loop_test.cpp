#include "base/loop/event_loop.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "base/check.hpp"
#include "base/log.hpp"

namespace kvhive::testing {
namespace {

using namespace std::chrono_literals;
using ::testing::ElementsAre;

/// A descriptor to watch, and the other end, which makes it readable.
struct Line {
  Line() {
    int ends[2];
    KV_CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) == 0);
    here = UniqueFd(ends[0]);
    there = UniqueFd(ends[1]);
  }
  void send() const { KV_CHECK(write(there.get(), "x", 1) == 1); }
  void take() const {
    char letter;
    KV_CHECK(read(here.get(), &letter, 1) == 1);
  }
  int fd() const { return here.get(); }

  UniqueFd here, there;
};

class EventLoopTest : public ::testing::Test {
 protected:
  /// Ends the loop after all events that are due now.
  void stop_soon() {
    loop_.after(20ms, [this] { loop_.stop(); });
  }

  EventLoop loop_ = EventLoop::create().value();
  std::vector<std::string> seen_;
};

TEST_F(EventLoopTest, AHandlerIsCalledForEachEventUntilUnwatched) {
  const Line line;
  loop_.watch(line.fd(), [&] {
    line.take();
    seen_.emplace_back("called");
    if (seen_.size() < 2) return line.send();
    loop_.unwatch(line.fd());
    line.send();
    stop_soon();
  });
  line.send();
  loop_.run();
  EXPECT_THAT(seen_, ElementsAre("called", "called"));
}

TEST_F(EventLoopTest, AHangupIsAnEvent) {
  Line line;
  loop_.watch(line.fd(), [&] { loop_.stop(); });
  line.there = UniqueFd();
  loop_.run();
}

TEST_F(EventLoopTest, AWatchMayBeRemovedInItsOwnHandler) {
  const Line line;
  // A capture larger than a std::function's buffer, so that it is on the heap. If unwatch() freed
  // the handler at once, it would be freed while it runs.
  const std::string long_name(200, 'x');
  loop_.watch(line.fd(), [this, long_name, fd = line.fd()] {
    loop_.unwatch(fd);
    seen_.push_back(long_name);
    loop_.stop();
  });
  line.send();
  loop_.run();
  EXPECT_THAT(seen_, ElementsAre(long_name));
}

TEST_F(EventLoopTest, AnEventOfAClosedDescriptorDoesNotReachTheNextOneOfThatNumber) {
  // Both descriptors have an event at once. The handler that runs first replaces the other
  // descriptor by one of the same number that has no event.
  Line lines[2];
  const Line silent;
  const auto replace = [&](Line& other) {
    const int number = other.fd();
    loop_.unwatch(number);
    KV_CHECK(dup2(silent.fd(), number) == number);
    loop_.watch(number, [&] { seen_.emplace_back("stale event"); });
  };
  for (int i = 0; i < 2; ++i) {
    loop_.watch(lines[i].fd(), [&, i] {
      lines[i].take();
      seen_.emplace_back("event");
      replace(lines[1 - i]);
      stop_soon();
    });
    lines[i].send();
  }
  loop_.run();
  EXPECT_THAT(seen_, ElementsAre("event"));
}

TEST_F(EventLoopTest, TimersRunInTheOrderOfTheirTimesAndEachOnce) {
  const auto start = std::chrono::steady_clock::now();
  loop_.after(30ms, [&] {
    seen_.emplace_back("third");
    loop_.stop();
  });
  loop_.after(10ms, [&] { seen_.emplace_back("first"); });
  loop_.after(20ms, [&] { seen_.emplace_back("second"); });
  loop_.run();
  EXPECT_THAT(seen_, ElementsAre("first", "second", "third"));
  EXPECT_GE(std::chrono::steady_clock::now() - start, 30ms);
}

TEST_F(EventLoopTest, TimersMaySetTimersAndEqualOnesKeepTheirOrder) {
  loop_.after(0ms, [&] {
    seen_.emplace_back("outer");
    for (const char* name : {"a", "b", "c"}) loop_.after(1ms, [&, name] { seen_.push_back(name); });
    loop_.after(5ms, [&] { loop_.stop(); });
  });
  loop_.run();
  EXPECT_THAT(seen_, ElementsAre("outer", "a", "b", "c"));
}

/// Setting a timer costs more than most events.
TEST_F(EventLoopTest, WithoutAPauseNoTimerIsSet) {
  const auto timer = [] {
    for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
      std::error_code none;
      if (read_symlink(entry, none) != "anon_inode:[timerfd]") continue;
      std::ostringstream info;
      info << std::ifstream("/proc/self/fdinfo" / entry.path().filename()).rdbuf();
      return info.str();
    }
    return std::string("none");
  };
  const std::string before = timer();
  EXPECT_THAT(before, ::testing::HasSubstr("ticks: 0"));
  loop_.after(0ms, [&] { loop_.stop(); });
  loop_.run();
  EXPECT_EQ(timer(), before);
}

TEST_F(EventLoopTest, ATimerThatIsAlwaysDueDoesNotKeepOthersWaiting) {
  const Line line;
  std::function<void()> again = [&] { loop_.after(0ms, again); };
  again();
  loop_.watch(line.fd(), [&] { loop_.stop(); });
  line.send();
  loop_.run();
}

TEST_F(EventLoopTest, AnExceptionEndsOneEventAndNotTheLoop) {
  spdlog::set_level(spdlog::level::off);
  const Line line;
  loop_.watch(line.fd(), [&] {
    line.take();
    throw std::runtime_error("from a watch");
  });
  loop_.after(1ms, [] { throw std::runtime_error("from a timer"); });
  loop_.after(1ms, [&] {
    seen_.emplace_back("still there");
    loop_.stop();
  });
  line.send();
  loop_.run();
  EXPECT_THAT(seen_, ElementsAre("still there"));
  spdlog::set_level(spdlog::level::info);
}

TEST(EventLoop, AnExceptionLeavesRunWithEscapeLeavesRun) {
  EventLoop loop = EventLoop::create(EventLoop::Escape::leaves_run).value();
  loop.after(0ms, [] { throw std::runtime_error("out"); });
  EXPECT_THROW(loop.run(), std::runtime_error);
}

TEST_F(EventLoopTest, StopInAHandlerSkipsTheOtherEvents) {
  const Line lines[2];
  for (const Line& line : lines) {
    loop_.watch(line.fd(), [&] {
      seen_.emplace_back("one");
      loop_.stop();
    });
    line.send();
  }
  loop_.run();
  EXPECT_THAT(seen_, ElementsAre("one"));
  loop_.run();  // handles the other
  EXPECT_THAT(seen_, ElementsAre("one", "one"));
}

TEST_F(EventLoopTest, StopInATimerSkipsLaterTimers) {
  for (int i = 0; i < 2; ++i) {
    loop_.after(0ms, [&] {
      seen_.emplace_back("one");
      loop_.stop();
    });
  }
  loop_.run();
  EXPECT_THAT(seen_, ElementsAre("one"));
}

/// An edge-triggered descriptor is never read, stays readable, and is reported once per event.
TEST_F(EventLoopTest, AnEdgeIsReportedOnceAndWithoutBeingRead) {
  const Line line;
  line.send();
  loop_.watch_edges(line.fd(), [&] {
    seen_.emplace_back("edge");
    if (seen_.size() == 1) return line.send();  // a second edge, although the first was not read
    stop_soon();
  });
  loop_.run();
  EXPECT_THAT(seen_, ElementsAre("edge", "edge"));
}

TEST_F(EventLoopTest, AWatchOfADescriptorThatIsReadableAlreadyIsAnEdge) {
  const Line line;
  line.send();
  loop_.watch_edges(line.fd(), [&] {
    seen_.emplace_back("edge");
    loop_.unwatch(line.fd());
    if (seen_.size() == 1)
      loop_.watch_edges(line.fd(), [&] {
        seen_.emplace_back("again");
        loop_.stop();
      });
  });
  loop_.run();
  EXPECT_THAT(seen_, ElementsAre("edge", "again"));
}

TEST_F(EventLoopTest, OtherThreadsPostHandlersWhichRunInOrder) {
  std::vector<int> numbers;
  std::thread other([&] {
    for (int i = 0; i < 1000; ++i) loop_.post([&numbers, i] { numbers.push_back(i); });
    loop_.post([this] { loop_.stop(); });
  });
  loop_.run();
  other.join();
  ASSERT_EQ(numbers.size(), 1000u);
  EXPECT_TRUE(std::is_sorted(numbers.begin(), numbers.end()));
}

TEST_F(EventLoopTest, APostThatStopsTheLoopKeepsNoOtherFromRunning) {
  loop_.post([this] { loop_.stop(); });
  loop_.post([this] { seen_.emplace_back("second"); });
  loop_.run();
  EXPECT_THAT(seen_, ElementsAre("second"));
}

TEST_F(EventLoopTest, MayRunAgainAfterAStop) {
  for (int i = 0; i < 2; ++i) {
    loop_.after(1ms, [this] {
      seen_.emplace_back("due");
      loop_.stop();
    });
    loop_.run();
  }
  EXPECT_THAT(seen_, ElementsAre("due", "due"));
}

}  // namespace
}  // namespace kvhive::testing
