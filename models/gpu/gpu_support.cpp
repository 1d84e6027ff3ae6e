#include "models/gpu/gpu_support.hpp"

#include <string>

#include "models/transformer_weights.hpp"

namespace kvhive {
namespace {

tl::unexpected<Error> not_on_gpu(const std::string& what) {
  return failure(Errc::unsupported, what + " is not computed on a GPU yet; use --device cpu");
}

}  // namespace

Expected<void> check_gpu_model(const ModelConfig& config) {
  const std::string name(config.architecture->name);
  if (config.architecture->family == Family::gemma)
    return not_on_gpu(name + " (soft caps, GELU, norms behind attention)");
  if (config.is_latent()) return not_on_gpu(name + " (multi-head latent attention)");
  if (config.architecture->experts != ExpertRule::none)
    return not_on_gpu(name + " (mixture of experts)");
  if (config.rope.full.scaling.kind == RopeScaling::Kind::yarn)
    return not_on_gpu(name + " with rope_scaling yarn");
  if (config.quantization.kind == Quantization::Kind::fp8)
    return not_on_gpu(name + " with weights in FP8 (quantization_config)");
  return {};
}

Expected<void> check_gpu_files(const ModelConfig& config, const SafetensorsDirectory& files) {
  for (std::int32_t layer = 0; layer < config.layers; ++layer) {
    const auto scales = read_kv_scales(files, layer);
    if (!scales) return forward_error(scales);
    if (*scales) return not_on_gpu("a checkpoint's k_scale and v_scale");
  }
  return {};
}

}  // namespace kvhive
