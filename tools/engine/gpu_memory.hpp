#pragma once
// What all engines share on a GPU, the arena and the weights, and its maker's part of handing it
// over (the keeper's is tools/keeper/gpu_memory_maker.hpp).

#include <cstddef>

#include "config/options.hpp"
#include "device/device.hpp"
#include "models/model_config.hpp"

namespace kvhive {

/// Of the weights' region: whole units of shared memory.
std::size_t gpu_weight_bytes(const ModelConfig& config, const Device& device);

/// Makes the arena (zeroed) and the weights (uploaded) and sends their descriptors to the keeper
/// over standard input. Where the memory needs its maker, stays until the keeper hangs up; whatever
/// the keeper sends meanwhile asks whether our context is alive: Errc::device_lost if not.
[[nodiscard]] Expected<void> hand_over_gpu_memory(Device& device, const Options& options,
                                                  const ModelConfig& config,
                                                  std::size_t arena_bytes);

}  // namespace kvhive
