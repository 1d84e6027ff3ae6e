#include "tools/keeper/strangers/expendable.hpp"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <optional>

namespace kvhive::testing {
namespace {

class ExpendablesTest : public ::testing::Test {
 protected:
  int status_of(std::vector<int> kept, const std::function<int()>& work) {
    std::optional<int> status;
    EXPECT_TRUE(expendables_.start(std::move(kept), work, [&](int ended) {
      status = ended;
      loop_.stop();
    }));
    while (!status) loop_.run();
    return *status;
  }

  EventLoop loop_ = EventLoop::create().value();
  Expendables expendables_{loop_};
};

TEST_F(ExpendablesTest, TellHowTheyEnded) {
  const int status = status_of({}, [] { return 7; });
  EXPECT_EQ(WEXITSTATUS(status), 7);
  EXPECT_EQ(WTERMSIG(status_of({}, [] { return raise(SIGKILL); })), SIGKILL);
  EXPECT_EQ(expendables_.count(), 0u);
}

TEST_F(ExpendablesTest, HaveNoDescriptorsButTheirOwn) {
  int first[2], second[2];
  ASSERT_EQ(pipe(first), 0);
  ASSERT_EQ(pipe(second), 0);
  const UniqueFd a(first[0]), b(first[1]), c(second[0]), d(second[1]);
  const int status = status_of({c.get(), a.get()}, [&] {
    int open = 0;
    for (int fd = 0; fd < 1024; ++fd) open += fcntl(fd, F_GETFD) >= 0 ? 1 : 0;
    const bool has_its_own = fcntl(a.get(), F_GETFD) >= 0 && fcntl(c.get(), F_GETFD) >= 0;
    return has_its_own ? open : 99;
  });
  EXPECT_EQ(WEXITSTATUS(status), 2);
}

int hang() {
  prctl(PR_SET_PDEATHSIG, SIGKILL);  // not longer than this test's process
  return pause();
}

TEST_F(ExpendablesTest, OneThatNeverEndsDelaysNothing) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  const UniqueFd reader(ends[0]);
  UniqueFd writer(ends[1]);
  {
    Expendables mortal(loop_);
    ASSERT_TRUE(mortal.start({writer.get()}, hang, [](int) { ADD_FAILURE(); }));
    EXPECT_EQ(mortal.count(), 1u);
    EXPECT_EQ(WEXITSTATUS(status_of({}, [] { return 3; })), 3);
  }
  writer = UniqueFd();
  pollfd end{reader.get(), POLLIN, 0};
  EXPECT_EQ(poll(&end, 1, 0), 0) << "it goes on";
}

}  // namespace
}  // namespace kvhive::testing
