#pragma once
// Products of activations with weights in which a row's bits depend on that row alone: not on how
// many others there are, nor on who computes it. Alphabet as in paged_kv.hpp; N and K are the
// width of what comes out and of what goes in.

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

/// In double precision, rounded at the end.
void row_product_reference(const RowProductArgs& args);

}  // namespace kvhive
