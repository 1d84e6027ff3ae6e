#pragma once
// Which models a GpuTransformer computes. The others run on the CPU (models/transformer.hpp).

#include "base/expected.hpp"
#include "models/config/model_config.hpp"

namespace kvhive {

/// Refuses a model with a size that the kernels of kernels/cuda do not take. The text names it and
/// what to do.
[[nodiscard]] Expected<void> check_gpu_model(const ModelConfig& config);

}  // namespace kvhive
