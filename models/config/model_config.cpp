#include "models/config/model_config.hpp"

#include <cmath>

namespace kvhive {

float ModelConfig::score_scale() const {
  return score_factor / std::sqrt(query_scalar > 0 ? query_scalar : static_cast<float>(head_size));
}

float ModelConfig::embedding_scale(Dtype weights) const {
  if (architecture->family == Family::llama) return 1;
  const float root = std::sqrt(static_cast<float>(hidden_size));
  switch (weights) {
    case Dtype::bf16: return float_of_bf16(bf16_of_float(root));
    case Dtype::f16: return float_of_f16(f16_of_float(root));
    default: return root;
  }
}

float ModelConfig::given_embedding_scale(Dtype weights) const {
  return architecture->embedding_is_scaled ? 1 : embedding_scale(weights);
}

}  // namespace kvhive
