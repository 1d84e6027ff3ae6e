#include "config/machine/cgroups.hpp"

#include <fstream>
#include <sstream>

namespace kvhive {
namespace {

namespace fs = std::filesystem;

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

/// A hierarchy of cgroups in the file system.
struct CgroupMount {
  CgroupVersion version;
  std::string top;  ///< the cgroup that is shown at `point`; "/" but in some containers
  fs::path point;
};

/// From lines like
///   31 23 0:27 / /sys/fs/cgroup/memory rw,relatime shared:9 - cgroup cgroup rw,memory
std::vector<CgroupMount> cgroup_mounts(const std::string& controller, const fs::path& root) {
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
    else if (type == "cgroup" && has_word(options, controller))
      mounts.push_back({CgroupVersion::v1, unescaped(top), unescaped(point)});
  }
  return mounts;
}

/// This process's cgroup in a hierarchy. From lines like "4:cpu,memory:/a/b" (v1) and "0::/a/b"
/// (v2).
std::string cgroup_of_ours(const std::string& controller, CgroupVersion version,
                           const fs::path& root) {
  std::ifstream file(root / "proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    const auto first = line.find(':');
    const auto second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    if (version == CgroupVersion::v2 ? controllers.empty() : has_word(controllers, controller))
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

}  // namespace

std::vector<Cgroup> cgroups_of_this_process(const std::string& controller, const fs::path& root) {
  std::vector<Cgroup> groups;
  for (const CgroupMount& mount : cgroup_mounts(controller, root)) {
    const std::string ours = cgroup_of_ours(controller, mount.version, root);
    const fs::path point = root / mount.point.relative_path();
    for (fs::path below = path_in_mount(mount, ours);; below = below.parent_path()) {
      groups.push_back({mount.version, below.empty() ? mount.top : below.string(),
                        point / below.relative_path()});
      if (below.empty() || below == "/") break;
    }
  }
  return groups;
}

}  // namespace kvhive
