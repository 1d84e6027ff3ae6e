#pragma once
// The options after everything that depends on the machine or the model has been worked out. The
// keeper resolves them once and gives them to its engines as flags.

#include <cstdint>
#include <string>
#include <vector>

#include "config/pool_geometry.hpp"
#include "config/models/hosted_models.hpp"

namespace kvhive {

struct ResolvedOptions {
  Options asked;  ///< as the operator wrote them; for the members below look there
  DeviceKind device = DeviceKind::cpu;                                ///< of asked.device
  CpuKernels cpu_kernels{};                                           ///< of asked.cpu_kernels
  GpuMemorySharing gpu_memory_sharing = GpuMemorySharing::automatic;  ///< vmm or ipc on a GPU
  std::vector<HostedModel> models;  ///< with the block size and the length that they have
  /// Of asked.threads and asked.cpu_bind: by number, of the engines that are started with the
  /// daemon.
  std::vector<EnginePlace> places;
};

/// The flags of an engine of this model: to_flags(asked), with resolved values in place of the
/// asked ones, so that an engine cannot resolve them differently.
std::vector<std::string> to_flags(const ResolvedOptions& options, ModelId model = {});
/// The same of a process that is for all models.
std::vector<std::string> flags_of_all_models(const ResolvedOptions& options);

}  // namespace kvhive
