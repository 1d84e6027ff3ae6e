#include "config/machine/machine_memory.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <map>

namespace kvhive {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

constexpr std::size_t kMiB = std::size_t{1} << 20;
constexpr std::size_t kGiB = std::size_t{1} << 30;

using Files = std::map<std::string, std::string>;

/// A machine with 16 GiB of memory, 8 GiB of it available. Tests add files to its /proc and /sys.
class MachineMemoryTest : public ::testing::Test {
 protected:
  MachineMemoryTest() {
    char name[] = "/tmp/kvhive-test-XXXXXX";
    root_ = mkdtemp(name);
    write({{"proc/meminfo",
            "MemTotal:       16777216 kB\nMemFree:         1000000 kB\n"
            "MemAvailable:    8388608 kB\nCommitLimit:     8388608 kB\n"
            "Committed_AS:    7340032 kB\nHugePages_Total:       0\n"},
           {"proc/sys/vm/overcommit_memory", "0\n"}});
  }
  ~MachineMemoryTest() override { fs::remove_all(root_); }

  void write(const Files& files) const {
    for (const auto& [path, text] : files) {
      fs::create_directories((root_ / path).parent_path());
      std::ofstream(root_ / path) << text;
    }
  }
  MachineMemory look() const { return machine_memory(root_); }
  static std::string number(std::size_t bytes) { return std::to_string(bytes) + "\n"; }

  fs::path root_;
};

const char* const kV2Mount =
    "24 1 0:22 / /proc rw - proc proc rw\n"
    "35 24 0:30 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n";
const char* const kV1Mount =
    "33 25 0:27 / /sys/fs/cgroup/cpu rw shared:8 - cgroup cgroup rw,cpu,cpuacct\n"
    "34 25 0:28 / /sys/fs/cgroup/memory rw shared:9 master:1 - cgroup cgroup rw,memory\n";

TEST_F(MachineMemoryTest, WithoutCgroupsTheMachineIsTheBound) {
  const MachineMemory memory = look();
  EXPECT_EQ(memory.total, 16 * kGiB);
  EXPECT_EQ(memory.available, 8 * kGiB);
  EXPECT_EQ(memory.bound, "the machine (MemTotal 16.00 GiB)");
}

TEST_F(MachineMemoryTest, ACommitLimitCountsOnlyIfItIsEnforced) {
  write({{"proc/sys/vm/overcommit_memory", "2\n"}});
  EXPECT_EQ(look().available, kGiB);
  EXPECT_THAT(look().bound, HasSubstr("vm.overcommit_memory 2, CommitLimit 8.00 GiB"));
}

TEST_F(MachineMemoryTest, VersionTwoLeavesLimitMinusUse) {
  write({{"proc/self/mountinfo", kV2Mount},
         {"proc/self/cgroup", "0::/system.slice/kvhive.service\n"},
         {"sys/fs/cgroup/system.slice/kvhive.service/memory.max", number(kGiB)},
         {"sys/fs/cgroup/system.slice/kvhive.service/memory.current", number(300 * kMiB)}});
  const MachineMemory memory = look();
  EXPECT_EQ(memory.total, kGiB);
  EXPECT_EQ(memory.available, kGiB - 300 * kMiB);
  EXPECT_EQ(memory.bound, "cgroup /system.slice/kvhive.service (memory.max 1.00 GiB)");
}

TEST_F(MachineMemoryTest, ReclaimableCachesAreAvailable) {
  write({{"proc/self/mountinfo", kV2Mount},
         {"proc/self/cgroup", "0::/a\n"},
         {"sys/fs/cgroup/a/memory.max", number(kGiB)},
         {"sys/fs/cgroup/a/memory.current", number(900 * kMiB)},
         {"sys/fs/cgroup/a/memory.stat",
          "anon 1\nshmem 104857600\ninactive_file 209715200\n"
          "active_file 104857600\nunevictable 0\n"}});
  EXPECT_EQ(look().available, kGiB - 600 * kMiB);
}

TEST_F(MachineMemoryTest, AParentsLimitCountsToo) {
  write({{"proc/self/mountinfo", kV2Mount},
         {"proc/self/cgroup", "0::/a/b/c\n"},
         {"sys/fs/cgroup/a/b/c/memory.max", number(4 * kGiB)},
         {"sys/fs/cgroup/a/b/c/memory.current", number(0)},
         {"sys/fs/cgroup/a/b/memory.max", "max\n"},
         {"sys/fs/cgroup/a/b/memory.current", number(6 * kGiB)},
         {"sys/fs/cgroup/a/memory.max", number(7 * kGiB)},
         {"sys/fs/cgroup/a/memory.current", number(6 * kGiB)}});
  const MachineMemory memory = look();
  EXPECT_EQ(memory.available, kGiB);
  EXPECT_EQ(memory.total, 4 * kGiB) << "the smallest limit, whatever its use";
  EXPECT_EQ(memory.bound, "cgroup /a (memory.max 7.00 GiB)");
}

TEST_F(MachineMemoryTest, MemoryHighCountsAsALimit) {
  write({{"proc/self/mountinfo", kV2Mount},
         {"proc/self/cgroup", "0::/a\n"},
         {"sys/fs/cgroup/a/memory.max", number(2 * kGiB)},
         {"sys/fs/cgroup/a/memory.high", number(kGiB)},
         {"sys/fs/cgroup/a/memory.current", number(kMiB)}});
  EXPECT_EQ(look().available, kGiB - kMiB);
  EXPECT_THAT(look().bound, HasSubstr("memory.high"));
}

TEST_F(MachineMemoryTest, MoreUsedThanAllowedLeavesNothing) {
  write({{"proc/self/mountinfo", kV2Mount},
         {"proc/self/cgroup", "0::/a\n"},
         {"sys/fs/cgroup/a/memory.max", number(kGiB)},
         {"sys/fs/cgroup/a/memory.current", number(2 * kGiB)}});
  EXPECT_EQ(look().available, 0u);
}

TEST_F(MachineMemoryTest, AContainersOwnHierarchyHasItsLimitAtTheTop) {
  write({{"proc/self/mountinfo", kV2Mount},
         {"proc/self/cgroup", "0::/\n"},
         {"sys/fs/cgroup/memory.max", number(kGiB)},
         {"sys/fs/cgroup/memory.current", number(0)}});
  EXPECT_EQ(look().available, kGiB);
  EXPECT_EQ(look().bound, "cgroup / (memory.max 1.00 GiB)");
}

TEST_F(MachineMemoryTest, ACgroupOutsideTheNamespaceIsShownAtTheTop) {
  write({{"proc/self/mountinfo", kV2Mount},
         {"proc/self/cgroup", "0::/../other\n"},
         {"sys/fs/cgroup/memory.max", number(kGiB)},
         {"sys/fs/cgroup/memory.current", number(0)}});
  EXPECT_EQ(look().available, kGiB);
}

TEST_F(MachineMemoryTest, VersionOneIsReadByItsOwnNames) {
  write({{"proc/self/mountinfo", kV1Mount},
         {"proc/self/cgroup", "9:name=systemd:/x\n4:hugetlb,memory:/a/b\n0::/y\n"},
         {"sys/fs/cgroup/memory/a/b/memory.limit_in_bytes", number(9223372036854771712u)},
         {"sys/fs/cgroup/memory/a/b/memory.usage_in_bytes", number(500 * kMiB)},
         {"sys/fs/cgroup/memory/a/memory.limit_in_bytes", number(kGiB)},
         {"sys/fs/cgroup/memory/a/memory.usage_in_bytes", number(500 * kMiB)},
         {"sys/fs/cgroup/memory/a/memory.stat",
          "cache 1\ninactive_file 1\n"
          "total_inactive_file 104857600\n"}});
  const MachineMemory memory = look();
  EXPECT_EQ(memory.available, kGiB - 400 * kMiB);
  EXPECT_EQ(memory.bound, "cgroup /a (memory.limit_in_bytes 1.00 GiB)");
}

TEST_F(MachineMemoryTest, AContainerMayBeShownOnlyItsOwnPartOfVersionOne) {
  write({{"proc/self/mountinfo",
          "34 25 0:28 /docker/abc /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n"},
         {"sys/fs/cgroup/memory/memory.limit_in_bytes", number(kGiB)},
         {"sys/fs/cgroup/memory/memory.usage_in_bytes", number(0)},
         {"sys/fs/cgroup/memory/below/memory.limit_in_bytes", number(kMiB)},
         {"sys/fs/cgroup/memory/below/memory.usage_in_bytes", number(0)}});
  for (const auto& [ours, available] : std::map<std::string, std::size_t>{
           {"/docker/abc", kGiB}, {"/docker/abc/below", kMiB}, {"/docker/abcdef", kGiB}}) {
    write({{"proc/self/cgroup", "4:memory:" + ours + "\n"}});
    EXPECT_EQ(look().available, available) << ours;
  }
}

TEST_F(MachineMemoryTest, MountPointsMayHaveSpaces) {
  write({{"proc/self/mountinfo", "35 24 0:30 / /my\\040groups rw - cgroup2 cgroup2 rw\n"},
         {"proc/self/cgroup", "0::/a\n"},
         {"my groups/a/memory.max", number(kGiB)},
         {"my groups/a/memory.current", number(0)}});
  EXPECT_EQ(look().available, kGiB);
}

TEST_F(MachineMemoryTest, MissingOrMalformedFilesLimitNothing) {
  const std::vector<Files> machines = {
      {{"proc/self/mountinfo", kV2Mount}},             // no /proc/self/cgroup
      {{"proc/self/cgroup", "0::/a\n4:memory:/a\n"}},  // no mount
      {{"proc/self/mountinfo", kV1Mount}, {"proc/self/cgroup", "4:cpu:/\n"}},  // no such controller
      {{"proc/self/mountinfo", kV2Mount}, {"proc/self/cgroup", "nonsense\n\n::\n"}},
      {{"proc/self/mountinfo", "1\n\n - \n"}, {"proc/self/cgroup", "0::/a\n"}},
      {{"proc/self/mountinfo", kV2Mount},
       {"proc/self/cgroup", "0::/a\n"},
       {"sys/fs/cgroup/a/memory.max", "what\n"}},
  };
  for (std::size_t i = 0; i < machines.size(); ++i) {
    fs::remove_all(root_ / "proc/self");
    write(machines[i]);
    EXPECT_EQ(look().available, 8 * kGiB) << i;
  }
}

TEST(MachineMemory, ThisMachineHasSomeAndNoMoreAvailableThanInAll) {
  const MachineMemory machine = machine_memory();
  EXPECT_GT(machine.total, 64 * kMiB);
  EXPECT_GT(machine.available, 0u);
  EXPECT_LE(machine.available, machine.total);
  EXPECT_FALSE(machine.bound.empty());
}

}  // namespace
}  // namespace kvhive
