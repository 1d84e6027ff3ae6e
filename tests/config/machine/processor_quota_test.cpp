#include "config/machine/processor_quota.hpp"

#include <gtest/gtest.h>

#include <fstream>

#include "tests/support/temp_directory.hpp"

namespace kvhive {
namespace {

namespace fs = std::filesystem;

class ProcessorQuotaTest : public ::testing::Test {
 protected:
  void write(const fs::path& path, const std::string& text) const {
    fs::create_directories((root_.path() / path).parent_path());
    std::ofstream(root_.path() / path) << text;
  }
  std::optional<ProcessorQuota> look() const { return processor_quota(root_.path()); }

  TempDirectory root_;
};

TEST_F(ProcessorQuotaTest, WithoutCgroupsThereIsNone) { EXPECT_FALSE(look().has_value()); }

TEST_F(ProcessorQuotaTest, OfVersionTwoTheLeastOfAllLevelsCounts) {
  write("proc/self/mountinfo", "35 24 0:30 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n");
  write("proc/self/cgroup", "0::/a/b\n");
  write("sys/fs/cgroup/a/b/cpu.max", "max 100000\n");
  EXPECT_FALSE(look().has_value());
  write("sys/fs/cgroup/a/cpu.max", "250000 100000\n");
  ASSERT_TRUE(look().has_value());
  EXPECT_EQ(look()->processors, 2.5);
  EXPECT_EQ(look()->bound, "cgroup /a (cpu.max)");
  write("sys/fs/cgroup/a/b/cpu.max", "50000 50000\n");
  EXPECT_EQ(look()->processors, 1.0);
  EXPECT_EQ(look()->bound, "cgroup /a/b (cpu.max)");
}

TEST_F(ProcessorQuotaTest, OfVersionOneTheControllerHasAHierarchyOfItsOwn) {
  write("proc/self/mountinfo",
        "33 25 0:27 / /sys/fs/cgroup/cpu rw shared:8 - cgroup cgroup rw,cpu,cpuacct\n"
        "34 25 0:28 / /sys/fs/cgroup/memory rw shared:9 - cgroup cgroup rw,memory\n");
  write("proc/self/cgroup", "5:memory:/m\n4:cpu,cpuacct:/c\n");
  write("sys/fs/cgroup/memory/m/cpu.cfs_quota_us", "1000\n");
  write("sys/fs/cgroup/cpu/c/cpu.cfs_quota_us", "-1\n");
  write("sys/fs/cgroup/cpu/c/cpu.cfs_period_us", "100000\n");
  EXPECT_FALSE(look().has_value());
  write("sys/fs/cgroup/cpu/c/cpu.cfs_quota_us", "400000\n");
  ASSERT_TRUE(look().has_value());
  EXPECT_EQ(look()->processors, 4.0);
  EXPECT_EQ(look()->bound, "cgroup /c (cpu.cfs_quota_us)");
}

}  // namespace
}  // namespace kvhive
