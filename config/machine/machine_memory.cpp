#include "config/machine/machine_memory.hpp"

#include <algorithm>
#include <fstream>
#include <map>
#include <optional>
#include <vector>

#include "base/byte_size.hpp"
#include "config/machine/cgroups.hpp"

namespace kvhive {
namespace {

namespace fs = std::filesystem;

/// "MemTotal:  24684084 kB" in /proc/meminfo, "inactive_file 4096" in a cgroup's memory.stat.
std::map<std::string, std::size_t> read_table(const fs::path& path) {
  std::ifstream file(path);
  std::map<std::string, std::size_t> table;
  std::string name, rest;
  for (std::size_t number = 0; file >> name >> number; std::getline(file, rest)) {
    if (name.back() == ':') name.pop_back();
    table[name] = number;
  }
  return table;
}

/// Nothing for "max", or if there is no such file.
std::optional<std::size_t> read_number(const fs::path& path) {
  std::ifstream file(path);
  std::size_t number = 0;
  if (file >> number) return number;
  return std::nullopt;
}

/// The files of a cgroup, whose names differ between the versions.
struct CgroupFiles {
  std::vector<std::string> limits;
  std::string usage;
  /// Rows of memory.stat that count file pages. The kernel drops those before it kills a process.
  /// Shared memory is not among them.
  std::vector<std::string> caches;
};

const CgroupFiles& files_of(CgroupVersion version) {
  static const CgroupFiles v1 = {{"memory.limit_in_bytes"},
                                 "memory.usage_in_bytes",
                                 {"total_inactive_file", "total_active_file"}};
  // Above memory.high the kernel kills no process but slows all of them down, which is no better.
  static const CgroupFiles v2 = {
      {"memory.max", "memory.high"}, "memory.current", {"inactive_file", "active_file"}};
  return version == CgroupVersion::v1 ? v1 : v2;
}

/// Takes in one more limit.
void bound_by(MachineMemory& memory, std::size_t limit, std::size_t used, const std::string& name) {
  memory.total = std::min(memory.total, limit);
  const std::size_t available = limit - std::min(used, limit);
  if (available >= memory.available) return;
  memory.available = available;
  memory.bound = name;
}

std::string bound_of_cgroup(const std::string& cgroup, const std::string& file, std::size_t limit) {
  return "cgroup " + cgroup + " (" + file + " " + format_bytes(limit) + ")";
}

void bound_by_cgroup(MachineMemory& memory, const Cgroup& group) {
  const CgroupFiles& files = files_of(group.version);
  for (const std::string& file : files.limits) {
    const auto limit = read_number(group.files / file);
    if (!limit) continue;
    std::size_t used = read_number(group.files / files.usage).value_or(0);
    auto stat = read_table(group.files / "memory.stat");
    for (const std::string& cache : files.caches) used -= std::min(used, stat[cache]);
    bound_by(memory, *limit, used, bound_of_cgroup(group.name, file, *limit));
  }
}

}  // namespace

MachineMemory machine_memory(const fs::path& root) {
  constexpr std::size_t kKiB = 1024;
  auto meminfo = read_table(root / "proc/meminfo");
  MachineMemory memory;
  memory.total = meminfo["MemTotal"] * kKiB;
  memory.available = meminfo["MemAvailable"] * kKiB;
  memory.bound = "the machine (MemTotal " + format_bytes(memory.total) + ")";
  if (read_number(root / "proc/sys/vm/overcommit_memory") == 2u)
    bound_by(memory, meminfo["CommitLimit"] * kKiB, meminfo["Committed_AS"] * kKiB,
             "the machine (vm.overcommit_memory 2, CommitLimit " +
                 format_bytes(meminfo["CommitLimit"] * kKiB) + ")");
  for (const Cgroup& group : cgroups_of_this_process("memory", root))
    bound_by_cgroup(memory, group);
  return memory;
}

}  // namespace kvhive
