#include "config/machine/processor_quota.hpp"

#include <fstream>

#include "config/machine/cgroups.hpp"

namespace kvhive {
namespace {

namespace fs = std::filesystem;

/// From the microseconds of processor time in each period; nothing for "max" (v2), -1 (v1), and if
/// there is no such file.
std::optional<double> processors_of(const Cgroup& group) {
  double quota = 0, period = 0;
  if (group.version == CgroupVersion::v2) {
    std::ifstream(group.files / "cpu.max") >> quota >> period;
  } else {
    std::ifstream(group.files / "cpu.cfs_quota_us") >> quota;
    std::ifstream(group.files / "cpu.cfs_period_us") >> period;
  }
  if (quota <= 0 || period <= 0) return std::nullopt;
  return quota / period;
}

}  // namespace

std::optional<ProcessorQuota> processor_quota(const fs::path& root) {
  std::optional<ProcessorQuota> least;
  for (const Cgroup& group : cgroups_of_this_process("cpu", root)) {
    const auto processors = processors_of(group);
    if (!processors || (least && least->processors <= *processors)) continue;
    const char* const file = group.version == CgroupVersion::v2 ? "cpu.max" : "cpu.cfs_quota_us";
    least = {*processors, "cgroup " + group.name + " (" + file + ")"};
  }
  return least;
}

}  // namespace kvhive
