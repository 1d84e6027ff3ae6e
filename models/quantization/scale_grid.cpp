#include "models/quantization/scale_grid.hpp"

#include <algorithm>
#include <array>

namespace kvhive {
namespace {

/// The grid of blocks of this size, if it has this shape.
std::optional<ScaleGrid> of_blocks(std::int32_t rows, std::int32_t columns, std::int32_t N,
                                   std::int32_t K, std::span<const std::int64_t> shape) {
  const ScaleGrid grid{rows, columns, {}};
  const std::array<std::int64_t, 2> wanted{grid.down(N), grid.across(K)};
  if (!std::ranges::equal(shape, wanted)) return std::nullopt;
  return grid;
}

}  // namespace

std::optional<ScaleGrid> scale_grid(const Quantization& how, std::int32_t N, std::int32_t K,
                                    std::span<const std::int64_t> shape) {
  if (how.block_rows > 0) return of_blocks(how.block_rows, how.block_columns, N, K, shape);
  if (how.group > 0) return of_blocks(1, how.group, N, K, shape);
  std::int64_t rows = 1;
  if (!shape.empty()) rows = shape[0];
  const bool is_column = shape.size() <= 1 || (shape.size() == 2 && shape[1] == 1);
  using ScaleOf = Quantization::ScaleOf;
  if (is_column && rows == 1 && how.scale_of != ScaleOf::row) return ScaleGrid{N, K, {}};
  if (is_column && rows == N && how.scale_of != ScaleOf::matrix) return ScaleGrid{1, K, {}};
  return std::nullopt;
}

}  // namespace kvhive
