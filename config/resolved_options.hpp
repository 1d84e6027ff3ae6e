#pragma once
// The options after everything that depends on the machine or the model has been worked out. The
// keeper resolves them once and gives them to its engines as flags.

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

/// The flags of an engine: to_flags(asked), with resolved values in place of the asked ones, so
/// that an engine cannot resolve them differently.
std::vector<std::string> to_flags(const ResolvedOptions& options);

}  // namespace kvhive
