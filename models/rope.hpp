#pragma once
// Rotary position embeddings. Dimensions are paired as in Hugging Face's "rotate half": dimension i
// is rotated together with dimension i + D/2.
//
// Source: Su et al., RoFormer (2021); transformers: modeling_rope_utils.py. The code does the same
// float32 operations in the same order, since models were trained with their rounding.

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

  /// Computes the angles of tokens at these positions. All layers and heads of a step use the same.
  void angles(std::span<const std::int32_t> positions, RopeAngles& angles) const;

  /// Rotates rows [T, heads, D] in place.
  void rotate(std::span<float> rows, std::int32_t heads, const RopeAngles& angles) const;

  /// The angle per position of each pair of dimensions, in radians, [D/2].
  std::span<const float> frequencies() const { return frequencies_; }

 private:
  std::vector<float> frequencies_;
};

}  // namespace kvhive
