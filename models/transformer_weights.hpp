#pragma once
// The tensors of a Llama-family model under their Hugging Face names, each checked for existence
// and shape.

#include <functional>
#include <optional>
#include <vector>

#include "models/matmul.hpp"
#include "models/model_config.hpp"
#include "models/safetensors.hpp"

namespace kvhive {

/// Called with (tensors done, tensors in all).
using LoadProgress = std::function<void(std::size_t, std::size_t)>;

struct LayerWeights {
  std::vector<float> input_norm;
  std::vector<float> post_attention_norm;
  std::vector<float> q_norm;  ///< [D], empty without qk_norm, as the next
  std::vector<float> k_norm;
  Matmul q, k, v, o;
  Matmul gate, up, down;
};

/// Matrices are borrowed from the mapped files it holds; norms and biases (a few KB) are f32
/// copies.
struct TransformerWeights {
  SafetensorsDirectory files;
  TensorView embedding;  ///< [vocab, hidden]
  std::vector<LayerWeights> layers;
  std::vector<float> final_norm;
  std::optional<Matmul> lm_head;  ///< always set; the embedding's bytes if tied

  static Expected<TransformerWeights> load(const std::filesystem::path& directory,
                                           const ModelConfig& config, const LoadProgress& progress);
};

/// The float values of a tensor, or of `count` of them from `first` on, whatever its dtype.
void read_floats(const TensorView& tensor, std::size_t first, std::span<float> out);

}  // namespace kvhive
