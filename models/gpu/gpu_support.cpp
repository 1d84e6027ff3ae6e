#include "models/gpu/gpu_support.hpp"

#include <string>

#include "kernels/expert_kernels.hpp"
#include "models/config/expert_config.hpp"

namespace kvhive {
namespace {

/// Of 16-bit rows in products by kernels/cuda/row_product.cu.
constexpr std::int32_t kRowMultiple = 8;

Expected<void> refused(const std::string& what) {
  return failure(Errc::unsupported, what + "; use --device cpu");
}

/// A row that experts or heads are multiplied with, which the device's library does not do.
Expected<void> check_row(const ModelConfig& config, const char* field, std::int32_t width) {
  if (config.dtype == Dtype::f32 || width % kRowMultiple == 0) return {};
  return refused(std::string(field) + " " + std::to_string(width) +
                 ": on a GPU it must be a multiple of 8");
}

Expected<void> check_experts(const ModelConfig& config) {
  if (config.experts > kMostExperts || config.experts_per_token > kMostExpertsPerToken)
    return refused("num_experts_per_tok " + std::to_string(config.experts_per_token) + " of " +
                   std::string(field_of_experts(config.architecture->experts)) + " " +
                   std::to_string(config.experts) + ": on a GPU there may be " +
                   std::to_string(kMostExpertsPerToken) + " of " + std::to_string(kMostExperts));
  return check_row(config, "hidden_size", config.hidden_size).and_then([&] {
    return check_row(config, "moe_intermediate_size", config.expert_inner);
  });
}

}  // namespace

Expected<void> check_gpu_model(const ModelConfig& config) {
  if (config.is_latent()) {
    if (auto row = check_row(config, "qk_nope_head_dim", config.latent.nope); !row) return row;
  } else if (config.head_size < 8 || config.head_size > 256 || config.head_size % 8 != 0) {
    return refused("head size " + std::to_string(config.head_size) +
                   ": on a GPU it must be 8 to 256, a multiple of 8");
  }
  return config.experts > 0 ? check_experts(config) : Expected<void>{};
}

}  // namespace kvhive
