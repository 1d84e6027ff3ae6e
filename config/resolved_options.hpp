#pragma once
// What the options come to on this machine and with this model. The keeper finds it out once, and
// its engines get it as flags.

#include <cstdint>
#include <string>
#include <vector>

#include "config/options.hpp"
#include "config/pool_geometry.hpp"

namespace kvhive {

struct ResolvedOptions {
  Options asked;  ///< as the operator wrote them; for the members below look there
  DeviceKind device = DeviceKind::cpu;                                ///< of asked.device
  GpuMemorySharing gpu_memory_sharing = GpuMemorySharing::automatic;  ///< vmm or ipc on a GPU
  std::uint32_t max_model_len = 0;  ///< tokens; 0 = the pool is not sized yet
};

/// The flags of an engine: to_flags(asked) with what was found out in place of what was asked, so
/// that the engine need not find it out again, and finds nothing else.
std::vector<std::string> to_flags(const ResolvedOptions& options);

}  // namespace kvhive
