#pragma once
// The model that an engine's options name.

#include <string>
#include <vector>

#include "config/options.hpp"
#include "config/pool_geometry.hpp"
#include "models/adapters/lora_file.hpp"
#include "models/layer_groups.hpp"
#include "models/transformer.hpp"

namespace kvhive {

/// The model's name: as it was given, or the name of its directory.
std::string model_name(const Options& options);

/// The layout of the model's KV blocks, with the element type of the options.
/// \pre the model has KV of that type: kv_dtype_of()
KvLayout kv_layout(const Options& options, DeviceKind device, const ModelConfig& config);

/// PoolGeometry::cpu_kernels of a pool on that device that this process computes for.
CpuKernels kernels_of(DeviceKind device);

/// Of the model, its adapters and the arithmetic. Engines of one pool have the same.
[[nodiscard]] Expected<std::uint64_t> served_fingerprint(const Options& options, DeviceKind device);

/// The files of the model's adapters, in the order of the option. Errors name the adapter.
[[nodiscard]] Expected<std::vector<LoraFile>> open_adapters(const Options& options,
                                                            const ModelConfig& config);

/// Loads the model and its adapters, in the order of the option. Shows a progress bar if standard
/// error is a terminal.
[[nodiscard]] Expected<Transformer> load_model(const Options& options);

}  // namespace kvhive
