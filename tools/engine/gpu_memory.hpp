#pragma once
// The device memory that all engines on a GPU share: arena and weights. This is the part of the
// process that makes it; the keeper's part is tools/keeper/gpu_memory_maker.hpp.

#include <cstddef>

#include "config/options.hpp"
#include "device/device.hpp"
#include "models/model_config.hpp"

namespace kvhive {

/// Size of the weights' region, a multiple of the granularity of shared memory.
std::size_t gpu_weight_bytes(const ModelConfig& config, const Device& device);

/// Makes the arena (zeroed) and the weights (uploaded), and sends their descriptors to the keeper
/// over standard input. If the memory lives only as long as this process (legacy IPC), waits until
/// the keeper closes the connection. Every packet of the keeper asks whether this process's context
/// still works; returns Errc::device_lost if not.
[[nodiscard]] Expected<void> make_and_send_gpu_memory(Device& device, const Options& options,
                                                      const ModelConfig& config,
                                                      std::size_t arena_bytes);

}  // namespace kvhive
