#pragma once
// How much memory we may have: the machine's, and what is left under every limit of the memory
// cgroups we are in, up to the root. Looked at beforehand, because a cgroup does not say no: pages
// of a memfd beyond its limit are answered by the kernel's OOM killer, not by ENOSPC.

#include <cstddef>
#include <filesystem>
#include <string>

namespace kvhive {

struct MachineMemory {
  std::size_t total = 0;      ///< of the smallest limit there is, the machine's own size included
  std::size_t available = 0;  ///< under all of them; caches that the kernel would drop count
  /// What leaves the least, as an operator finds it: "cgroup /a/b (memory.max 1.00 GiB)".
  std::string bound;
};

/// \param root  where /proc and /sys are; another one for tests
MachineMemory machine_memory(const std::filesystem::path& root = "/");

}  // namespace kvhive
