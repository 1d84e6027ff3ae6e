#pragma once
// The quantized matrices of a model's files, and the values that they stand for.

#include <cstddef>
#include <string>
#include <vector>

#include "base/expected.hpp"
#include "models/model_tensors.hpp"
#include "models/quantization/quantization.hpp"
#include "models/safetensors.hpp"

namespace kvhive {

/// Whether the files have this matrix in FP8.
bool is_in_fp8(const SafetensorsDirectory& files, const ModelTensor& listed,
               const Quantization& how);

/// What the quantized matrices of a model become whose config says `model`.
constexpr Dtype dtype_of_quantized(Dtype model) {
  return model == Dtype::bf16 ? Dtype::bf16 : Dtype::f32;
}

/// The values [rows, columns] of a matrix in FP8. Its shape and its scales are checked.
/// \param to  as dtype_of_quantized() says
[[nodiscard]] Expected<std::vector<std::byte>> read_quantized(const SafetensorsDirectory& files,
                                                              const ModelTensor& listed,
                                                              const Quantization& how, Dtype to);

/// The scales in one tensor, which must be finite and positive.
[[nodiscard]] Expected<std::vector<float>> read_scale_values(const SafetensorsDirectory& files,
                                                             const std::string& name);

}  // namespace kvhive
