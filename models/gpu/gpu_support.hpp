#pragma once
// Which models a GpuTransformer computes. The others run on the CPU (models/transformer.hpp).

#include "base/expected.hpp"
#include "models/model_config.hpp"
#include "models/safetensors.hpp"

namespace kvhive {

/// Refuses a model that has something the GPU's forward pass does not compute: the Gemma family,
/// latent attention, mixtures of experts, YaRN, quantized weights. The text names it and what to
/// do.
[[nodiscard]] Expected<void> check_gpu_model(const ModelConfig& config);

/// Refuses files with scales for a cache of fp8, which would be passed over.
[[nodiscard]] Expected<void> check_gpu_files(const ModelConfig& config,
                                             const SafetensorsDirectory& files);

}  // namespace kvhive
