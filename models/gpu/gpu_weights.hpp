#pragma once
// A model's weights in one region of device memory, which all engines of a GPU map. The offset of
// each tensor follows from the model's config alone: one process uploads the weights, and the other
// processes need no files.

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

/// All offsets in this file are in bytes from the start of the region. kNoTensor = there is no such
/// tensor.
inline constexpr std::size_t kNoTensor = SIZE_MAX;

/// A matrix [N, K], row-major, of the model's dtype. The bias [N] is optional and has the dtype in
/// which the product is stored.
struct GpuMatrix {
  std::size_t weights = kNoTensor;
  std::size_t bias = kNoTensor;
  std::int32_t N = 0, K = 0;
};

/// A layer's weights, by their use. Weights that the model does not have are kNoTensor.
struct GpuLayer {
  std::array<std::size_t, kLayerWeightCount> norms = no_norms();  ///< f32
  /// One entry per product. Matrices that are multiplied in one product lie one after the other and
  /// share the entry of the first: the entry of `gate` also has the rows of `up`.
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
  /// A tensor of the model's files, and its offset in the region. Bytes between tensors are not
  /// written.
  struct Tensor {
    std::string name;
    std::vector<std::int64_t> shape;
    Dtype dtype;
    std::size_t offset;
    std::size_t bytes() const;
  };

  explicit GpuWeights(const ModelConfig& config);

  std::vector<Tensor> tensors;
  std::size_t bytes = 0;        ///< size of the region
  std::size_t frequencies = 0;  ///< offset of the rotary embedding's frequencies, f32 [D/2]; they
                                ///< are computed, not read from a file
  std::size_t embedding = 0;    ///< offset of [vocab, hidden] of the model's dtype
  std::size_t final_norm = 0;
  GpuMatrix lm_head;  ///< if tied, the same offset as `embedding`
  std::vector<GpuLayer> layers;
};

/// Copies the weights from the mapped files into the region, in pieces, through a small page-locked
/// buffer. Values are converted if a file has another dtype than the model's config says. All
/// copies are complete on return.
/// \param region  device memory of at least GpuWeights::bytes, aligned to 256 bytes
[[nodiscard]] Expected<void> upload_weights(Device& device, const ModelConfig& config,
                                            const SafetensorsDirectory& files, std::byte* region,
                                            const LoadProgress& progress = {});

}  // namespace kvhive
