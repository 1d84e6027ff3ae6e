#include "tools/placement/memory_policy.hpp"

#include <gtest/gtest.h>
#include <linux/mempolicy.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

namespace kvhive {
namespace {

/// -1 = the kernel does not say.
int policy() {
  int mode = -1;
  return syscall(SYS_get_mempolicy, &mode, nullptr, 0, nullptr, 0) == 0 ? mode : -1;
}

TEST(SpreadMemory, HoldsAsLongAsItLivesAndForProgramsThatAreStarted) {
  if (policy() != MPOL_DEFAULT) GTEST_SKIP() << "this kernel, or container, has no memory policies";
  {
    auto spread = SpreadMemory::over({0});
    if (!spread) GTEST_SKIP() << spread.error().text;
    EXPECT_TRUE(spread->is_active());
    EXPECT_EQ(policy(), MPOL_INTERLEAVE);
    const pid_t child = fork();
    if (child == 0) _exit(policy());
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(WEXITSTATUS(status), MPOL_INTERLEAVE);
  }
  EXPECT_EQ(policy(), MPOL_DEFAULT);
}

TEST(SpreadMemory, AnotherPolicyStays) {
  if (policy() != MPOL_DEFAULT) GTEST_SKIP() << "this kernel, or container, has no memory policies";
  unsigned long first = 1;
  if (syscall(SYS_set_mempolicy, MPOL_BIND, &first, 64) != 0) GTEST_SKIP() << "not allowed";
  {
    auto spread = SpreadMemory::over({0});
    ASSERT_TRUE(spread.has_value());
    EXPECT_FALSE(spread->is_active());
    EXPECT_EQ(policy(), MPOL_BIND);
  }
  EXPECT_EQ(policy(), MPOL_BIND);
  syscall(SYS_set_mempolicy, MPOL_DEFAULT, nullptr, 0);
}

TEST(SpreadMemory, WithoutNodesNothingChanges) {
  auto spread = SpreadMemory::over({});
  ASSERT_TRUE(spread.has_value());
  EXPECT_FALSE(spread->is_active());
}

}  // namespace
}  // namespace kvhive
