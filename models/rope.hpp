#pragma once
// Rotary position embeddings, the "rotate half" pairing of Hugging Face: dim i turns with dim
// i+D/2.
//
// Source: Su et al., RoFormer (2021); transformers: modeling_rope_utils.py, whose float32 steps are
// followed one by one, since models were trained with their rounding.

#include <cstdint>
#include <span>
#include <vector>

#include "models/model_config.hpp"

namespace kvhive {

/// cos and sin of every token's angles: [T, D/2] each.
struct RopeAngles {
  std::vector<float> cosines;
  std::vector<float> sines;
};

class Rope {
 public:
  explicit Rope(const ModelConfig& config);

  /// Fills `angles` for tokens at these positions; the same for all layers and heads of a step.
  void angles(std::span<const std::int32_t> positions, RopeAngles& angles) const;

  /// Turns rows [T, heads, D] in place.
  void rotate(std::span<float> rows, std::int32_t heads, const RopeAngles& angles) const;

  /// Radians per position of each pair of dims, [D/2].
  std::span<const float> frequencies() const { return frequencies_; }

 private:
  std::vector<float> frequencies_;
};

}  // namespace kvhive
