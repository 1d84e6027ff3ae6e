#include "models/quantization/fp8_weights.hpp"

#include <algorithm>
#include <array>
#include <cstring>

#include "base/check.hpp"
#include "config/fp8.hpp"

namespace kvhive {
namespace {

std::int32_t pieces(std::int32_t whole, std::int32_t piece) { return (whole - 1) / piece + 1; }

std::array<float, 256> floats_of_codes() {
  std::array<float, 256> floats{};
  for (std::size_t code = 0; code < floats.size(); ++code)
    floats[code] = float_of_e4m3(static_cast<std::uint8_t>(code));
  return floats;
}

}  // namespace

std::optional<ScaleGrid> scale_grid(const Quantization& how, std::int32_t N, std::int32_t K,
                                    std::span<const std::int64_t> shape) {
  if (how.block_rows > 0) {
    const std::array<std::int64_t, 2> wanted{pieces(N, how.block_rows),
                                             pieces(K, how.block_columns)};
    if (!std::ranges::equal(shape, wanted)) return std::nullopt;
    return ScaleGrid{how.block_rows, how.block_columns, {}};
  }
  std::int64_t rows = 1;
  if (!shape.empty()) rows = shape[0];
  const bool is_column = shape.size() <= 1 || (shape.size() == 2 && shape[1] == 1);
  if (is_column && rows == 1) return ScaleGrid{N, K, {}};
  if (is_column && rows == N) return ScaleGrid{1, K, {}};
  return std::nullopt;
}

std::vector<std::byte> values_of_e4m3(std::span<const std::byte> codes, std::int32_t N,
                                      std::int32_t K, const ScaleGrid& grid, Dtype to) {
  const std::size_t across = pieces(K, grid.block_columns);
  KV_CHECK(to == Dtype::f32 || to == Dtype::bf16, int(to));
  KV_CHECK(codes.size() == std::size_t(N) * K, codes.size(), N, K);
  KV_CHECK(grid.scales.size() == across * pieces(N, grid.block_rows), grid.scales.size());
  static const std::array<float, 256> floats = floats_of_codes();
  std::vector<std::byte> values(codes.size() * bytes_of(to));
#pragma omp parallel for
  for (std::int32_t row = 0; row < N; ++row) {
    const float* scales = &grid.scales[row / grid.block_rows * across];
    const std::byte* from = codes.data() + std::size_t(row) * K;
    std::byte* out = values.data() + std::size_t(row) * K * bytes_of(to);
    for (std::int32_t column = 0; column < K; ++column) {
      const float value =
          floats[static_cast<std::uint8_t>(from[column])] * scales[column / grid.block_columns];
      const std::uint16_t narrow = bf16_of_float(value);
      if (to == Dtype::bf16)
        std::memcpy(out + column * sizeof narrow, &narrow, sizeof narrow);
      else
        std::memcpy(out + column * sizeof value, &value, sizeof value);
    }
  }
  return values;
}

}  // namespace kvhive
