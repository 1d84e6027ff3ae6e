#pragma once
// Products with bf16 weights as they lie in the file. Private to Matmul. One is by bf16 dot
// products (VDPBF16PS), for CPUs that have these. The other is by f32, for CPUs without any bf16
// instruction.
//
// An element of y is the dot product of two rows that lie alike, so nothing need be packed: decode
// reads the weights once and as fast as memory gives them, and the same loop with more rows per
// register tile does prefill; for many rows over a copy in which four columns are one run (not by
// f32). The order of additions follows from K alone (as many sums as a vector has lanes over every
// 2,048 elements, folded, then the next 2,048), which makes a row's bits independent of all other
// rows without further proof.

#include <cstddef>
#include <cstdint>

namespace kvhive {

/// out[i] = x[i] as bf16, to nearest even; NaN stays NaN, what is smaller than 2^-126 may become 0.
/// By AVX-512 BF16.
void round_to_bf16(const float* x, std::int64_t count, std::uint16_t* out);

/// So many elements of K are added up at a time.
inline constexpr std::int32_t kBf16ProductDepth = 2048;

/// Bytes of Bf16ProductArgs::scratch.
constexpr std::size_t bf16_product_scratch(std::int32_t columns, std::int32_t K) {
  const std::int32_t depth = K < kBf16ProductDepth ? K : kBf16ProductDepth;
  return std::size_t(columns + 3) / 4 * 4 * (std::size_t(depth + 31) / 32 * 64);
}

struct Bf16ProductArgs {
  const std::uint16_t* x = nullptr;  ///< [rows, K] bf16
  const std::byte* w = nullptr;      ///< [columns, K] bf16, at any address
  float* y = nullptr;                ///< [rows, columns], y_stride floats from row to row
  const float* bias = nullptr;       ///< [columns]; null: none
  std::int64_t y_stride = 0;
  std::int32_t rows = 0;
  std::int32_t columns = 0;
  std::int32_t K = 0;
  std::byte* scratch = nullptr;  ///< this thread's, whole cache lines
};

/// y = x * w^T + bias on the calling thread, by AVX-512 BF16. Best with so many columns that their
/// weights fit into half of L2 (or with few rows).
void bf16_product(const Bf16ProductArgs& args);

/// The same on any CPU, by f32; needs no scratch.
void bf16_float_product(const Bf16ProductArgs& args);

}  // namespace kvhive
