#pragma once
// Rotary position embeddings. Dimensions are paired as in Hugging Face's "rotate half": dimension i
// is rotated together with dimension i + D/2; of DeepSeek's models and Llama 4, dimension 2i with
// dimension 2i+1.
//
// Source: Su et al., RoFormer (2021); Peng et al., YaRN (2023); transformers:
// modeling_rope_utils.py. The code does the same float32 operations in the same order, since models
// were trained with their rounding.

#include <cstdint>
#include <span>
#include <vector>

#include "models/config/model_config.hpp"
#include "models/config/rope_config.hpp"

namespace kvhive {

/// cos and sin of every token's angles: [T, D/2] each, times the scaling's attention factor.
struct RopeAngles {
  std::vector<float> cosines;
  std::vector<float> sines;
};

class Rope {
 public:
  /// \param head_size  D, even
  Rope(std::int32_t head_size, const RopeConfig& rope);
  /// The rotation of a model's layers that see everything; mostly of all.
  explicit Rope(const ModelConfig& config) : Rope(config.rotated_size(), config.rope.full) {}

  /// Computes the angles of tokens at these positions. All layers and heads of a step use the same.
  void angles(std::span<const std::int32_t> positions, RopeAngles& angles) const;

  /// Rotates rows [T, heads, D] in place.
  void rotate(std::span<float> rows, std::int32_t heads, const RopeAngles& angles) const;

  /// Rotates dimensions 2i and 2i+1 together, as DeepSeek's models and Llama 4 are trained: in
  /// place, the first dimensions of rows [T, heads] that begin `stride` floats apart.
  void rotate_neighbours(std::span<float> rows, std::size_t stride, std::int32_t heads,
                         const RopeAngles& angles) const;

  /// The angle per position of each pair of dimensions, in radians, [D/2].
  std::span<const float> frequencies() const { return frequencies_; }
  /// What sines and cosines are multiplied by: yarn's attention factor, or 1.
  float attention_factor() const { return attention_factor_; }

 private:
  std::vector<float> frequencies_;
  float attention_factor_ = 1;
};

}  // namespace kvhive
