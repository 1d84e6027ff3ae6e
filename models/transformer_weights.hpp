#pragma once
// The tensors of a model under their Hugging Face names, each checked for existence
// and shape.

#include <array>
#include <functional>
#include <optional>
#include <vector>

#include "models/experts.hpp"
#include "models/latent/latent_heads.hpp"
#include "models/config/model_config.hpp"
#include "models/model_tensors.hpp"
#include "models/product/matmul.hpp"
#include "models/safetensors.hpp"

namespace kvhive {

/// Called with (tensors done, all tensors).
using LoadProgress = std::function<void(std::size_t, std::size_t)>;

/// What the K and V of one layer are divided by before they are stored in a cache of fp8.
struct KvScaleValues {
  float k = 1;
  float v = 1;
};

/// Reads a layer's k_scale and v_scale, which a checkpoint may have for a cache of fp8; nothing if
/// it has none.
[[nodiscard]] Expected<std::optional<KvScaleValues>> read_kv_scales(
    const SafetensorsDirectory& files, std::int32_t layer);

/// A layer's weights, by their use. Weights that the model does not have are empty.
struct LayerWeights {
  std::array<std::vector<float>, kLayerWeightCount> norms;  ///< what a norm multiplies by
  std::array<std::optional<Matmul>, kLayerWeightCount> products;
  std::vector<ExpertWeights> experts;  ///< of a sparse layer
  std::optional<LatentHeads> heads;    ///< kv_b, with latent attention
  std::optional<KvScaleValues> kv_scales;

  const std::vector<float>& norm(LayerWeight weight) const {
    return norms[static_cast<std::size_t>(weight)];
  }
  /// \pre the model has this matrix
  const Matmul& product(LayerWeight weight) const {
    return *products[static_cast<std::size_t>(weight)];
  }
};

/// All weights of a model. Matrices refer to the mapped files in `files`, those in codes, too;
/// norms and biases (a few KB), and scales of codes are f32 copies. Packed experts and half of
/// kv_b_proj (latent_heads.hpp) are copies.
struct TransformerWeights {
  SafetensorsDirectory files;
  TensorView embedding;  ///< [vocab, hidden]
  std::vector<LayerWeights> layers;
  std::vector<float> final_norm;
  std::optional<Matmul> lm_head;  ///< always set; if tied, it uses the embedding's bytes

  [[nodiscard]] static Expected<TransformerWeights> load(const std::filesystem::path& directory,
                                                         const ModelConfig& config,
                                                         const LoadProgress& progress);

  /// Bytes of matrices that are this process's own instead of pages of the files, which all engines
  /// share: packed experts, half of kv_b_proj, scales of codes.
  std::size_t private_bytes() const;

  /// What private_bytes() will be once the model is loaded. Nothing is read but the files' headers;
  /// what is wrong in them, load() says.
  static std::size_t bytes_to_copy(const SafetensorsDirectory& files, const ModelConfig& config);
};

}  // namespace kvhive
