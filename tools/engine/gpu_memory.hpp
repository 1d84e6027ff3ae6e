#pragma once
// Makes the device memory that all engines on a GPU share: arena and weights. This code runs in a
// child of the keeper; the keeper's side is tools/keeper/gpu_memory_maker.hpp.

#include <cstddef>

#include "config/options.hpp"
#include "device/device.hpp"
#include "models/config/model_config.hpp"

namespace kvhive {

/// Size of the weights' region in bytes: a multiple of the granularity of the device's shared
/// memory.
std::size_t gpu_weight_bytes(const ModelConfig& config, const Device& device);

/// Makes the arena (zeroed) and the weights (uploaded), and sends their descriptors to the keeper
/// over standard input, which is a socket. If the memory lives only as long as this process (legacy
/// IPC), then waits until the keeper closes the connection. Each packet from the keeper meanwhile
/// asks whether this process's GPU context still works; if not, returns Errc::device_lost.
[[nodiscard]] Expected<void> make_and_send_gpu_memory(Device& device, const Options& options,
                                                      const ModelConfig& config,
                                                      std::size_t arena_bytes);

}  // namespace kvhive
