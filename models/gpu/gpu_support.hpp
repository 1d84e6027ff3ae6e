#pragma once
// Which models a GpuTransformer computes. The others run on the CPU (models/transformer.hpp).

#include "base/expected.hpp"
#include "models/model_config.hpp"

namespace kvhive {

/// Refuses a model that has something the GPU's forward pass does not compute: the Gemma family,
/// mixtures of experts, YaRN. The text names it and what to do.
[[nodiscard]] Expected<void> check_gpu_model(const ModelConfig& config);

}  // namespace kvhive
