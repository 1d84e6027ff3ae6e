#pragma once
// Writes the K and V of new tokens into their slots (vLLM: reshape_and_cache).

#include <cstdint>
#include <type_traits>

#include "kernels/paged_kv.hpp"

namespace kvhive {

/// Values are rounded to kv.dtype: to nearest, ties to even; NaN stays NaN in what has one (int8:
/// 0). fp8 and int8 store value / scale (divided in f32), what is too large as the largest (448,
/// 57344, 127). With scales per token and head the scale is made here, amax / largest (1 if that is
/// 0; NaN does not count), and written too; other scales are read.
struct CacheWriteArgs {
  const void* k = nullptr;                     ///< [T, G, D] of in_dtype
  const void* v = nullptr;                     ///< [T, G, D] of in_dtype
  const std::int64_t* slot_mapping = nullptr;  ///< [T] block*S + slot; -1 = padding, skipped
  PagedKv kv;
  std::int32_t T = 0;
  Dtype in_dtype = Dtype::f32;  ///< f32, bf16 or f16
};
static_assert(std::is_trivially_copyable_v<CacheWriteArgs>);

void cache_write_reference(const CacheWriteArgs& args);
void cache_write_cpu(const CacheWriteArgs& args);

}  // namespace kvhive
