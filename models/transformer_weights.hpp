#pragma once
// The tensors of a Llama-family model under their Hugging Face names, each checked for existence
// and shape.

#include <array>
#include <functional>
#include <optional>
#include <vector>

#include "models/matmul.hpp"
#include "models/model_config.hpp"
#include "models/model_tensors.hpp"
#include "models/safetensors.hpp"

namespace kvhive {

/// Called with (tensors done, tensors in all).
using LoadProgress = std::function<void(std::size_t, std::size_t)>;

/// A layer's weights, by their use. What the model does not have is empty.
struct LayerWeights {
  std::array<std::vector<float>, kLayerWeightCount> norms;
  std::array<std::optional<Matmul>, kLayerWeightCount> products;

  const std::vector<float>& norm(LayerWeight weight) const {
    return norms[static_cast<std::size_t>(weight)];
  }
  /// \pre the model has this matrix
  const Matmul& product(LayerWeight weight) const {
    return *products[static_cast<std::size_t>(weight)];
  }
};

/// Matrices are borrowed from the mapped files it holds; norms and biases (a few KB) are f32
/// copies.
struct TransformerWeights {
  SafetensorsDirectory files;
  TensorView embedding;  ///< [vocab, hidden]
  std::vector<LayerWeights> layers;
  std::vector<float> final_norm;
  std::optional<Matmul> lm_head;  ///< always set; the embedding's bytes if tied

  [[nodiscard]] static Expected<TransformerWeights> load(const std::filesystem::path& directory,
                                                         const ModelConfig& config,
                                                         const LoadProgress& progress);
};

/// The float values of a tensor, or of `count` of them from `first` on, whatever its dtype.
void read_floats(const TensorView& tensor, std::size_t first, std::span<float> out);

}  // namespace kvhive
