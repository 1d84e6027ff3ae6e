#pragma once
// A model's weights in one region of device memory, which all engines of a GPU map. Where each
// tensor lies follows from the config alone: one process uploads, the others read no file.

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "device/device.hpp"
#include "models/model_config.hpp"
#include "models/model_tensors.hpp"
#include "models/safetensors.hpp"
#include "models/transformer_weights.hpp"

namespace kvhive {

/// Offsets below are bytes from the region's first one.
inline constexpr std::size_t kNoTensor = SIZE_MAX;

/// Row-major [N, K] of the model's dtype, and perhaps a bias [N] of what its product is stored as.
struct GpuMatrix {
  std::size_t weights = kNoTensor;
  std::size_t bias = kNoTensor;
  std::int32_t N = 0, K = 0;
};

/// A layer's weights, by their use. What the model does not have is kNoTensor.
struct GpuLayer {
  std::array<std::size_t, kLayerWeightCount> norms = no_norms();  ///< f32
  /// One product each. Matrices that lie behind one another are one: gate's holds up's rows, too.
  std::array<GpuMatrix, kLayerWeightCount> products;

  std::size_t norm(LayerWeight weight) const { return norms[static_cast<std::size_t>(weight)]; }
  const GpuMatrix& product(LayerWeight weight) const {
    return products[static_cast<std::size_t>(weight)];
  }

 private:
  static constexpr std::array<std::size_t, kLayerWeightCount> no_norms() {
    std::array<std::size_t, kLayerWeightCount> norms{};
    norms.fill(kNoTensor);
    return norms;
  }
};

struct GpuWeights {
  /// A tensor of the files, and where it goes; bytes between tensors are not written.
  struct Tensor {
    std::string name;
    std::vector<std::int64_t> shape;
    Dtype dtype;
    std::size_t offset;
    std::size_t bytes() const;
  };

  explicit GpuWeights(const ModelConfig& config);

  std::vector<Tensor> tensors;
  std::size_t bytes = 0;        ///< of the region
  std::size_t frequencies = 0;  ///< of rotary embeddings, f32 [D/2]; computed, in no file
  std::size_t embedding = 0;    ///< [vocab, hidden] of the model's dtype
  std::size_t final_norm = 0;
  GpuMatrix lm_head;  ///< the embedding if they are tied
  std::vector<GpuLayer> layers;
};

/// Fills the region from the mapped files, in pieces through a little page-locked memory; values
/// are converted where a file has another dtype than the model says. All is there on return.
/// \param region  device memory of GpuWeights::bytes at least, aligned to 256
[[nodiscard]] Expected<void> upload_weights(Device& device, const ModelConfig& config,
                                            const SafetensorsDirectory& files, std::byte* region,
                                            const LoadProgress& progress = {});

}  // namespace kvhive
