#include "models/gpu/gpu_support.hpp"

#include <string>

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
  if (config.architecture->has_experts) return not_on_gpu(name + " (mixture of experts)");
  if (config.rope.full.scaling.kind == RopeScaling::Kind::yarn)
    return not_on_gpu(name + " with rope_scaling yarn");
  return {};
}

}  // namespace kvhive
