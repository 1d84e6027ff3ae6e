#include "tools/snapshot/process_facts.hpp"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

namespace kvhive::testing {
namespace {

TEST(ProcessFacts, ThisProcessRuns) {
  const auto facts = facts_of(getpid());
  ASSERT_TRUE(facts.has_value());
  EXPECT_FALSE(facts->is_stopped());
  EXPECT_LT(facts->age_seconds, 3600u);
}

/// A name of brackets and blanks does not shift the fields behind it; a zombie has ended.
TEST(ProcessFacts, ANameMayLookLikeFields) {
  const pid_t child = fork();
  if (child == 0) {
    prctl(PR_SET_NAME, ") R 1 (x");
    raise(SIGSTOP);
    _exit(0);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, WUNTRACED), child);
  auto facts = facts_of(child);
  ASSERT_TRUE(facts.has_value());
  EXPECT_EQ(facts->program, ") R 1 (x");
  EXPECT_TRUE(facts->is_stopped());
  kill(child, SIGKILL);
  siginfo_t info{};
  ASSERT_EQ(waitid(P_PID, static_cast<id_t>(child), &info, WEXITED | WNOWAIT), 0);
  facts = facts_of(child);
  ASSERT_TRUE(facts.has_value());
  EXPECT_TRUE(facts->has_ended());
  waitpid(child, nullptr, 0);
  EXPECT_FALSE(facts_of(child).has_value());
  EXPECT_FALSE(facts_of(0).has_value());
}

}  // namespace
}  // namespace kvhive::testing
