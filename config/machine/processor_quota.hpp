#pragma once
// How much processor time this process may have. A cgroup that limits it takes the processors away
// from all of its threads at once when they have used it up, for the rest of a tenth of a second:
// threads beyond the quota make every step late.

#include <filesystem>
#include <optional>
#include <string>

namespace kvhive {

struct ProcessorQuota {
  double processors;  ///< so many may be busy all the time
  std::string bound;  ///< whose it is, in the operator's words: "cgroup /a/b (cpu.max)"
};

/// The least of all cgroups that this process is in; nothing = none has a limit.
/// \param root  where /proc and /sys are; another one for tests
std::optional<ProcessorQuota> processor_quota(const std::filesystem::path& root = "/");

}  // namespace kvhive
