#pragma once
// The control groups that this process is in, of version 1 or 2, as far as the file system shows
// them.

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace kvhive {

/// Their files have other names in each.
enum class CgroupVersion : std::uint8_t { v1, v2 };

struct Cgroup {
  CgroupVersion version;
  std::string name;  ///< "/a/b"
  std::filesystem::path files;
};

/// Those that may limit this process by a controller ("memory", "cpu"): of each hierarchy the
/// innermost, then what it lies in, up to the outermost that is shown.
/// \param root  where /proc and /sys are; another one for tests
std::vector<Cgroup> cgroups_of_this_process(const std::string& controller,
                                            const std::filesystem::path& root);

}  // namespace kvhive
