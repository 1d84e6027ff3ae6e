#pragma once
// Matrices in FP8 E4M3 with scales, and the values that they stand for.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "config/dtype.hpp"
#include "models/quantization/quantization.hpp"

namespace kvhive {

/// The scales of a matrix [N, K]: one for each block of rows x columns, row-major. The last block
/// of a row or column may be cut.
struct ScaleGrid {
  std::int32_t block_rows = 0;
  std::int32_t block_columns = 0;
  std::vector<float> scales;  ///< [ceil(N / block_rows), ceil(K / block_columns)]
};

/// The blocks that a tensor of scales of this shape has for a matrix [N, K]: with blocks in the
/// config those; else [], [1] or [1, 1] is one scale, [N] or [N, 1] one for each row. Nothing if
/// the shape does not fit.
std::optional<ScaleGrid> scale_grid(const Quantization& how, std::int32_t N, std::int32_t K,
                                    std::span<const std::int64_t> shape);

/// The values [N, K] of a matrix of codes: code times scale in f32, rounded to `to`.
/// \param to  f32 or bf16
std::vector<std::byte> values_of_e4m3(std::span<const std::byte> codes, std::int32_t N,
                                      std::int32_t K, const ScaleGrid& grid, Dtype to);

}  // namespace kvhive
