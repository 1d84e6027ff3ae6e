#pragma once
// The quantized matrices of a model's files. Beside the codes of a matrix X [N, K] there lie, with
// G groups of columns that share a scale:
//
//   fp8             X.weight F8_E4M3 [N, K], X.weight_scale or X.weight_scale_inv
//   packed          X.weight_packed I32 [N, K / codes of a word], X.weight_scale [N, G], perhaps
//                   X.weight_shape [2], X.weight_zero_point and X.weight_g_idx [K]
//   int8            X.weight I8 [N, K], X.weight_scale, perhaps X.weight_zero_point
//   gptq            X.qweight I32 [K / codes of a word, N], X.scales [G, N],
//                   X.qzeros I32 [G, N / codes of a word], and perhaps X.g_idx [K]
//   awq             X.qweight I32 [K, N / 8], X.scales [G, N], X.qzeros I32 [G, N / 8]
//
// A g_idx says of each column which scale it has; where columns are in order it says nothing new,
// and is left in the file. Codes are not looked at: a code of FP8 may be NaN.

#include <cstddef>
#include <string>
#include <vector>

#include "base/expected.hpp"
#include "models/model_tensors.hpp"
#include "models/quantization/coded_matrix.hpp"
#include "models/quantization/quantization.hpp"
#include "models/safetensors.hpp"

namespace kvhive {

/// Whether the files have this matrix in codes.
bool is_quantized(const SafetensorsDirectory& files, const ModelTensor& listed,
                  const Quantization& how);

/// What the quantized matrices of a model stand for whose config says `model`.
constexpr Dtype dtype_of_quantized(Dtype model) {
  return model == Dtype::bf16 ? Dtype::bf16 : Dtype::f32;
}

/// Refuses files with codes that would not be used: of a matrix of which config.json does not say
/// that it is quantized, or of an output matrix that it says is tied to the embedding.
///
/// \param tensors  model_tensors() of the config
[[nodiscard]] Expected<void> check_codes_are_used(const SafetensorsDirectory& files,
                                                  const ModelConfig& config,
                                                  const std::vector<ModelTensor>& tensors);

/// A matrix in codes, which stay in the file. The shapes of its tensors are checked, its scales,
/// and whether what its zeros and groups say agrees with config.json.
[[nodiscard]] Expected<CodedMatrix> read_coded(const SafetensorsDirectory& files,
                                               const ModelTensor& listed, const Quantization& how);

/// What CodedMatrix::owned_bytes() will be, by the files' headers and what they have as groups.
std::size_t coded_bytes_to_copy(const SafetensorsDirectory& files, const ModelTensor& listed,
                                const Quantization& how);

/// The scales in one tensor, which must be finite and more than 0.
[[nodiscard]] Expected<std::vector<float>> read_scale_values(const SafetensorsDirectory& files,
                                                             const std::string& name);

}  // namespace kvhive
