#pragma once
// A matrix of weights [N, K] in codes of four or eight bits, as it lies in a checkpoint's file, and
// the values that the codes stand for.
//
// A value is (code - zero) * scale, computed in f32 and rounded once to the type that products are
// computed with. So a product with coded weights has the bits of the same product with weights of
// that type, in every arithmetic.
//
// Sources of the orders: GPTQModel, nn_modules/qlinear (pack_original, dequantize_weight); AutoAWQ,
// awq/utils/packing_utils.py; compressed-tensors, compressors/pack_quantized.

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "config/dtype.hpp"

namespace kvhive {

enum class CodeKind : std::uint8_t { e4m3, int8, uint8, uint4 };

/// Bits of a code.
constexpr std::int32_t bits_of(CodeKind kind) { return kind == CodeKind::uint4 ? 4 : 8; }

/// Whether codes with this scale stand for no value but 0 that is a denormal or infinite, rounded
/// or not.
constexpr bool is_plain(CodeKind kind, float scale) {
  // What scales are multiplied by: at least, but for 0, and less than.
  const float least = kind == CodeKind::e4m3 ? 0x1p-9f : 1.0f, most = 0x1p9f;
  const float size = scale < 0 ? -scale : scale;
  if (kind == CodeKind::e4m3 && scale <= 0) return false;
  if (size == 0) return true;
  return size >= 0x1p-126f / least && size < 0x1p127f / most;
}

/// How codes lie in memory. Words have 32 bits, little-endian; a word's first code is in its lowest
/// bits.
enum class CodeOrder : std::uint8_t {
  rows,  ///< each row's codes one after the other, its last word filled up
  gptq,  ///< words [K / codes of a word, N]: each has one row's next codes
  awq,   ///< words [K, N / 8]: each has one column's codes of 8 rows, in the order kAwqRows
};

/// Which row a word's codes are of, from the lowest bits on.
inline constexpr std::int32_t kAwqRows[8] = {0, 2, 4, 6, 1, 3, 5, 7};

/// Where a row's code is in such a word.
std::int32_t awq_place(std::int32_t row);
/// A word of a file, at any address.
std::uint32_t word_at(const std::byte* words, std::size_t index);

/// The scales of a matrix [N, K]: one for each block of rows x columns, row-major. The last block
/// of a row or column may be cut.
struct ScaleGrid {
  std::int32_t block_rows = 0;
  std::int32_t block_columns = 0;
  std::vector<float> scales;  ///< [ceil(N / block_rows), ceil(K / block_columns)]

  /// Scales side by side.
  std::int32_t across(std::int32_t K) const { return (K - 1) / block_columns + 1; }
  std::int32_t down(std::int32_t N) const { return (N - 1) / block_rows + 1; }
};

struct CodedMatrix {
  CodeKind kind = CodeKind::e4m3;
  CodeOrder order = CodeOrder::rows;
  std::int32_t N = 0;
  std::int32_t K = 0;
  std::span<const std::byte> bytes{};  ///< of the file; at any address
  ScaleGrid grid;
  /// What is subtracted from a code; int8 counts from -128 as 0. Of e4m3: 0.
  std::uint8_t zero = 0;
  std::vector<std::uint8_t> zeros{};  ///< one beside each scale; empty: `zero` for all
  /// [K] which of its row's scales each column has, where that is not the one of its place (GPTQ's
  /// "act order"); else empty.
  std::vector<std::int32_t> groups{};

  /// Bytes of a row's codes in CodeOrder::rows, to which the other orders are put, too.
  std::size_t row_bytes() const;
  /// What `bytes` must have.
  std::size_t code_bytes() const;
  /// Bytes of memory that are this object's own: of scales, zeros and groups.
  std::size_t owned_bytes() const;
  /// One value, in f32, before it is rounded: what a value is, said plainly.
  float value(std::int32_t row, std::int32_t column) const;
};

}  // namespace kvhive
