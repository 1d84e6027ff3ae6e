#pragma once
// A model's weights in one region of device memory, which all engines of a GPU map. The offset of
// each tensor follows from the model's config alone: one process uploads the weights, and the other
// processes need not read them. Behind them lie adapters (gpu_adapters.hpp).

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "device/device.hpp"
#include "models/config/model_config.hpp"
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
  /// share the entry of the first: the entry of `gate` also has the rows of `up`. Of experts'
  /// weights it is the first expert's.
  std::array<GpuMatrix, kLayerWeightCount> products;
  std::int64_t expert_step = 0;  ///< elements from a weight of one expert to that of the next
  /// With latent attention each head's W_UK, transposed: [H, rank, nope] (models/latent).
  std::size_t to_latent = kNoTensor;

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
  /// What becomes of a tensor on its way to the region.
  enum class Made : std::uint8_t {
    as_it_is,
    plus_one,    ///< Gemma's norms, which the files have less 1
    key_halves,  ///< of kv_b_proj each head's W_UK, transposed
    unpacked,    ///< one expert's rows, of a tensor with all experts' transposed
  };
  /// A tensor of the model's files, and its place in the region. Bytes between tensors are not
  /// written.
  struct Tensor {
    std::string name;
    std::vector<std::int64_t> shape;  ///< in the files
    Dtype dtype;                      ///< in the region
    std::size_t offset;
    std::size_t count;  ///< of elements in the region
    Made made = Made::as_it_is;
    std::size_t listed = 0;  ///< whose weight or bias it is, in model_tensors()
    std::size_t bytes() const { return count * bytes_of(dtype); }
  };

  explicit GpuWeights(const ModelConfig& config);

  std::vector<Tensor> tensors;
  std::size_t bytes = 0;  ///< size of the region, without adapters
  /// Offsets of the rotary embedding's frequencies, f32 [D/2], which are computed, not read from a
  /// file; of layers with a window, where they rotate otherwise.
  std::size_t frequencies = 0, sliding_frequencies = kNoTensor;
  std::size_t ones = kNoTensor;  ///< offset of f32 [D]: of norms of heads that have no weights
  /// Offset of f32 [layers, 2]: what K and V of a cache of fp8 are divided by; 1 unless the files
  /// have k_scale and v_scale.
  std::size_t kv_scales = 0;
  std::size_t embedding = 0;  ///< offset of [vocab, hidden] of the model's dtype
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
