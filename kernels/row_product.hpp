#pragma once
// Products of activations and weights in which a row's bits depend on that row alone: not on the
// number of rows in the call, nor on the thread or warp that computes it. Letters as in
// paged_kv.hpp; N is the width of the output, K that of the input.

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "config/dtype.hpp"

namespace kvhive {

/// y = x * w^T + bias, added in f32; all row-major.
///
/// bf16 and f16 are for speed. f32 is for models in f32: its kernel is small and simple, and not
/// fast.
struct RowProductArgs {
  const void* x = nullptr;     ///< [T, K] of dtype
  const void* w = nullptr;     ///< [N, K] of dtype
  const void* bias = nullptr;  ///< [N] of out_dtype, or null; only with `batch` 1
  void* y = nullptr;           ///< [T, N] of out_dtype; no overlap with the others
  std::int32_t T = 0, N = 0, K = 0;
  Dtype dtype = Dtype::bf16;      ///< bf16, f16 or f32
  Dtype out_dtype = Dtype::bf16;  ///< bf16, f16 or f32
  std::int64_t x_stride = 0;      ///< elements from one row of x to the next; 0: K
  std::int64_t y_stride = 0;      ///< likewise of y; 0: N
  /// So many products in one call (one per head, for example), each with matrices of its own:
  /// product b begins at x + b * x_step, w + b * w_step, y + b * y_step (elements). Products may
  /// share x or w (a step of 0), but not y.
  std::int32_t batch = 1;
  std::int64_t x_step = 0, w_step = 0, y_step = 0;
};
static_assert(std::is_trivially_copyable_v<RowProductArgs>);

/// In double precision, rounded once at the end.
void row_product_reference(const RowProductArgs& args);

/// An adapter's matrices beside one of the model's: A [rank, K] and B [N, rank], both row-major.
struct AdapterMatrices {
  std::uint64_t a = 0, b = 0;  ///< in bytes from AdapterProductArgs::base
  std::int32_t rank = 0;       ///< 0 = the adapter has nothing beside this matrix
  float scale = 0;
};
static_assert(std::is_trivially_copyable_v<AdapterMatrices>);

/// y[t] += scale * B (A x[t]) with the matrices of row t's adapter. A x is kept in f32, and what is
/// added is rounded with y.
///
/// Source: Hu et al., LoRA (2021); several adapters in a batch: Chen et al., Punica (2023).
struct AdapterProductArgs {
  const void* x = nullptr;  ///< [T, K] of dtype
  const std::byte* base = nullptr;
  const AdapterMatrices* matrices = nullptr;  ///< by adapter
  const std::int32_t* adapters = nullptr;     ///< [T] a row's adapter, -1 = none
  float* narrow = nullptr;                    ///< [T, R] scratch
  void* y = nullptr;                          ///< [T, N] of out_dtype
  std::int32_t T = 0, N = 0, K = 0;
  std::int32_t R = 0;             ///< at least every rank
  std::int64_t y_stride = 0;      ///< elements from one row of y to the next; 0: N
  Dtype dtype = Dtype::bf16;      ///< of x, A and B: bf16, f16 or f32
  Dtype out_dtype = Dtype::bf16;  ///< bf16, f16 or f32
};
static_assert(std::is_trivially_copyable_v<AdapterProductArgs>);

/// In double precision, rounded once at the end; leaves `narrow` alone.
void adapter_product_reference(const AdapterProductArgs& args);

}  // namespace kvhive
