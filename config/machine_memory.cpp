#include "config/machine_memory.hpp"

#include <algorithm>
#include <fstream>
#include <limits>
#include <map>
#include <optional>
#include <sstream>
#include <vector>

#include "base/byte_size.hpp"

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

bool has_word(const std::string& list, const std::string& wanted) {
  std::istringstream words(list);
  for (std::string word; std::getline(words, word, ',');)
    if (word == wanted) return true;
  return false;
}

/// The kernel writes a space in a path as \040.
std::string unescaped(const std::string& text) {
  std::string plain;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const bool is_escape = text[i] == '\\' && i + 3 < text.size();
    plain += is_escape ? static_cast<char>(std::stoi(text.substr(i + 1, 3), nullptr, 8)) : text[i];
    if (is_escape) i += 3;
  }
  return plain;
}

// -- cgroups --------------------------------------------------------------------------------------

enum class CgroupVersion { v1, v2 };

/// The files of a cgroup, whose names differ between version 1 and 2.
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

/// A hierarchy of cgroups in the file system.
struct CgroupMount {
  CgroupVersion version;
  std::string top;  ///< the cgroup that is shown at `point`; "/" but in some containers
  fs::path point;
};

/// From lines like
///   31 23 0:27 / /sys/fs/cgroup/memory rw,relatime shared:9 - cgroup cgroup rw,memory
std::vector<CgroupMount> cgroup_mounts(const fs::path& root) {
  std::ifstream file(root / "proc/self/mountinfo");
  std::vector<CgroupMount> mounts;
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string skipped, top, point, word, type, source, options;
    words >> skipped >> skipped >> skipped >> top >> point;
    while (words >> word && word != "-") {
    }
    words >> type >> source >> options;
    if (type == "cgroup2")
      mounts.push_back({CgroupVersion::v2, unescaped(top), unescaped(point)});
    else if (type == "cgroup" && has_word(options, "memory"))
      mounts.push_back({CgroupVersion::v1, unescaped(top), unescaped(point)});
  }
  return mounts;
}

/// This process's cgroup in a hierarchy. From lines like "4:cpu,memory:/a/b" (v1) and "0::/a/b"
/// (v2).
std::string cgroup_of_ours(const fs::path& root, CgroupVersion version) {
  std::ifstream file(root / "proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    const auto first = line.find(':');
    const auto second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    if (version == CgroupVersion::v2 ? controllers.empty() : has_word(controllers, "memory"))
      return line.substr(second + 1);
  }
  return "/";
}

/// The path of cgroup `ours` below the mount point: "/a/b", or nothing if the mount point itself is
/// that cgroup, as in a container.
std::string path_in_mount(const CgroupMount& mount, const std::string& ours) {
  const std::string top = mount.top == "/" ? "" : mount.top;
  const bool is_below = ours.rfind(top + "/", 0) == 0 && ours.rfind("/..", 0) != 0;
  if (!is_below || ours == "/") return {};
  return ours.substr(top.size());
}

// -- all together ---------------------------------------------------------------------------------

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

void bound_by_cgroup(MachineMemory& memory, const fs::path& directory, CgroupVersion version,
                     const std::string& cgroup) {
  const CgroupFiles& files = files_of(version);
  for (const std::string& file : files.limits) {
    const auto limit = read_number(directory / file);
    if (!limit) continue;
    std::size_t used = read_number(directory / files.usage).value_or(0);
    auto stat = read_table(directory / "memory.stat");
    for (const std::string& cache : files.caches) used -= std::min(used, stat[cache]);
    bound_by(memory, *limit, used, bound_of_cgroup(cgroup, file, *limit));
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
  for (const CgroupMount& mount : cgroup_mounts(root)) {
    const std::string ours = cgroup_of_ours(root, mount.version);
    const fs::path point = root / mount.point.relative_path();
    for (fs::path below = path_in_mount(mount, ours);; below = below.parent_path()) {
      const std::string name = below.empty() ? mount.top : below.string();
      bound_by_cgroup(memory, point / below.relative_path(), mount.version, name);
      if (below.empty() || below == "/") break;
    }
  }
  return memory;
}

}  // namespace kvhive
