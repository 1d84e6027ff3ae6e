#pragma once
// The model that an engine's options name.

#include <string>

#include "config/options.hpp"
#include "config/pool_geometry.hpp"
#include "models/transformer.hpp"

namespace kvhive {

/// Its directory's name: what people call it.
std::string model_name(const Options& options);

/// The layout of its KV blocks, in the element type that was asked for.
KvLayout kv_layout(const Options& options, DeviceKind device, const ModelConfig& config);

/// With a progress bar, if somebody is looking.
[[nodiscard]] Expected<Transformer> load_model(const Options& options);

}  // namespace kvhive
