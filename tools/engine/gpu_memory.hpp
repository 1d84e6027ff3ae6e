#pragma once
// Makes the device memory that all engines on a GPU share: the arena, and each model's weights.
// This code runs in a child of the keeper; the keeper's side is tools/keeper/gpu_memory_maker.hpp.

#include <cstddef>
#include <span>

#include "config/options.hpp"
#include "device/device.hpp"
#include "models/adapters/lora_file.hpp"
#include "models/config/model_config.hpp"
#include "models/gpu/gpu_adapters.hpp"

namespace kvhive {

/// Where a model's adapters lie: in the region of its weights, behind them.
GpuAdapters adapters_behind(const ModelConfig& config, std::span<const LoraFile> files);

/// Size of that region in bytes: a multiple of the granularity of the device's shared memory.
std::size_t gpu_weight_bytes(const GpuAdapters& adapters, const Device& device);

/// Makes the arena (zeroed) and the weights of all models (uploaded), and sends their descriptors
/// to the keeper over standard input, which is a socket. If the memory lives only as long as this
/// process (legacy IPC), then waits until the keeper closes the connection. Each packet from the
/// keeper meanwhile asks whether this process's GPU context still works; if not, returns
/// Errc::device_lost.
[[nodiscard]] Expected<void> make_and_send_gpu_memory(Device& device, const Options& options,
                                                      std::size_t arena_bytes);

}  // namespace kvhive
