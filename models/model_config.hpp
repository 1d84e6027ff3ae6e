#pragma once
// What a Hugging Face config.json says about a decoder of the Llama family.

#include <cstdint>
#include <filesystem>
#include <optional>
#include <vector>

#include "base/expected.hpp"
#include "base/ids.hpp"
#include "config/dtype.hpp"
#include "models/architecture.hpp"

namespace kvhive {

/// How rotary frequencies are stretched for long contexts (transformers: modeling_rope_utils.py).
struct RopeScaling {
  enum class Kind : std::uint8_t { none, linear, llama3 };
  Kind kind = Kind::none;
  double factor = 1;
  double low_freq_factor = 1;  ///< llama3 only, as the next two
  double high_freq_factor = 4;
  std::int64_t original_max_position = 0;  ///< context the model was first trained on
};

struct ModelConfig {
  const Architecture* architecture = &kArchitectures[0];
  std::int32_t hidden_size = 0;
  std::int32_t intermediate_size = 0;
  std::int32_t layers = 0;
  std::int32_t heads = 0;      ///< H, query heads
  std::int32_t kv_heads = 0;   ///< G
  std::int32_t head_size = 0;  ///< D; even
  std::int32_t vocab_size = 0;
  std::int32_t max_position_embeddings = 0;
  float rms_norm_eps = 1e-6f;
  double rope_theta = 10000;
  RopeScaling rope_scaling;
  bool tie_word_embeddings = false;
  bool qkv_bias = false;
  bool output_bias = false;  ///< of the attention's o_proj
  bool mlp_bias = false;
  std::int32_t sliding_window = 0;       ///< tokens; 0 = none
  std::int32_t first_sliding_layer = 0;  ///< layers before it see everything (Qwen)
  Dtype dtype = Dtype::f32;  ///< what the weights were saved as; each tensor's own dtype rules
  std::optional<TokenId> bos;
  std::vector<TokenId> eos;

  /// Whether the layers of this model have such a weight.
  bool has(LayerWeight weight) const {
    return !kOptionalWeights.has(weight) || architecture->optional.has(weight);
  }

  /// The window of one layer in tokens, 0 = none.
  std::int32_t window_of(std::int32_t layer) const {
    return layer >= first_sliding_layer ? sliding_window : 0;
  }
};

/// Reads config.json and, where there is one, generation_config.json (whose eos ids win, as they do
/// in Hugging Face's and vLLM's generation). A field that changes what the model computes, in a way
/// that kvhive does not, is an error that names it.
[[nodiscard]] Expected<ModelConfig> load_model_config(const std::filesystem::path& directory);

}  // namespace kvhive
