// What the keeper's own functions do with children, in this process.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>

#include "tools/keeper/children/ask_child.hpp"
#include "tools/keeper/children/reaper.hpp"

namespace kvhive::testing {
namespace {

/// Whether this process has a child, ended or not.
bool has_children() {
  siginfo_t child{};
  return waitid(P_ALL, 0, &child, WEXITED | WNOHANG | WNOWAIT) == 0 || errno != ECHILD;
}

/// This test's own program, which lists its tests.
Child child_that_answers() {
  Child child;
  child.program = std::filesystem::read_symlink("/proc/self/exe").filename();
  child.flags = {"--gtest_list_tests"};
  return child;
}

/// A daemon that has just started has the processes that it needs, and no ended ones.
TEST(AskTest, WhoHasAnsweredIsCollectedAtOnce) {
  Child child = child_that_answers();
  const auto said = ask(child, {});
  ASSERT_TRUE(said) << said.error().text;
  ASSERT_TRUE(*said);
  EXPECT_THAT(**said, ::testing::HasSubstr("AskTest."));
  EXPECT_FALSE(has_children());
}

TEST(AskTest, WhoIsStoppedIsCollectedAtOnce) {
  int stop[2];
  ASSERT_EQ(pipe(stop), 0);
  const UniqueFd read_end(stop[0]), write_end(stop[1]);
  ASSERT_EQ(write(write_end.get(), "s", 1), 1);
  Child child = child_that_answers();
  const auto said = ask(child, {.stop = read_end.get()});
  ASSERT_TRUE(said) << said.error().text;
  EXPECT_FALSE(*said);
  EXPECT_FALSE(has_children());
}

TEST(EndOfChildTest, SaysWhyThereIsNone) {
  EXPECT_EQ(end_of_child(getpid(), IfItRuns::say_so), tl::unexpected(NoEnd::no_child));
  const pid_t child = fork();
  if (child == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);  // not longer than this test's process
    _exit(pause());
  }
  EXPECT_EQ(end_of_child(child, IfItRuns::say_so), tl::unexpected(NoEnd::it_runs));
  kill(child, SIGTERM);
  const auto end = end_of_child(child, IfItRuns::wait);
  ASSERT_TRUE(end);
  EXPECT_EQ(WTERMSIG(*end), SIGTERM);
  EXPECT_EQ(end_of_child(child, IfItRuns::say_so), end);  // it is there until it is collected
  EXPECT_EQ(waitpid(child, nullptr, 0), child);
  EXPECT_EQ(end_of_child(child, IfItRuns::wait), tl::unexpected(NoEnd::no_child));
}

}  // namespace
}  // namespace kvhive::testing
