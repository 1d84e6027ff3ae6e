#include "tools/keeper/succession/orphan_ends.hpp"

#include "tools/keeper/children/reaper.hpp"

namespace kvhive {

bool is_orphan(pid_t pid) {
  const auto end = end_of_child(pid, IfItRuns::say_so);
  return !end && end.error() == NoEnd::no_child;
}

std::optional<int> OrphanEnds::status_of(pid_t pid) const {
  const std::uint32_t count = count_;
  for (std::uint32_t back = 1; back <= kKept; ++back) {  // the last that had the number
    const std::uint64_t end = ends_[(count - back) % kKept];
    if (end >> 32 == std::uint64_t(pid)) return static_cast<int>(static_cast<std::uint32_t>(end));
  }
  return std::nullopt;
}

}  // namespace kvhive
