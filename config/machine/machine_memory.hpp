#pragma once
// How much memory this process can have: the machine's, and what is left under the limit of each
// memory cgroup that it is in, up to the root. It has to be asked beforehand, because a cgroup
// refuses nothing: if a memfd grows beyond the limit, the result is the kernel's OOM killer, not
// ENOSPC.

#include <cstddef>
#include <filesystem>
#include <string>

namespace kvhive {

struct MachineMemory {
  std::size_t total = 0;      ///< of the smallest limit there is, the machine's own size included
  std::size_t available = 0;  ///< under all of them; caches that the kernel would drop count
  /// The limit that leaves the least, in the operator's words: "cgroup /a/b (memory.max 1.00 GiB)".
  std::string bound;
};

/// \param root  where /proc and /sys are; another one for tests
MachineMemory machine_memory(const std::filesystem::path& root = "/");

}  // namespace kvhive
