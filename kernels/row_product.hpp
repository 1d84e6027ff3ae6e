#pragma once
// Products of activations and weights in which a row's bits depend on that row alone: not on the
// number of rows in the call, nor on the thread or warp that computes it. Letters as in
// paged_kv.hpp; N is the width of the output, K that of the input.

#include <cstdint>
#include <type_traits>

#include "config/dtype.hpp"

namespace kvhive {

/// y = x * w^T + bias, added in f32; all row-major.
struct RowProductArgs {
  const void* x = nullptr;     ///< [T, K] of dtype
  const void* w = nullptr;     ///< [N, K] of dtype
  const void* bias = nullptr;  ///< [N] of out_dtype, or null
  void* y = nullptr;           ///< [T, N] of out_dtype; no overlap with the others
  std::int32_t T = 0, N = 0, K = 0;
  Dtype dtype = Dtype::bf16;      ///< bf16 or f16
  Dtype out_dtype = Dtype::bf16;  ///< bf16, f16 or f32
};
static_assert(std::is_trivially_copyable_v<RowProductArgs>);

/// In double precision, rounded once at the end.
void row_product_reference(const RowProductArgs& args);

}  // namespace kvhive
