#pragma once
// Writes the K and V of new tokens into their slots (vLLM: reshape_and_cache).

#include <cstdint>
#include <type_traits>

#include "kernels/paged_kv.hpp"

namespace kvhive {

/// Rounds the values to kv.dtype: to nearest, ties to even. NaN stays NaN where the type has one
/// (int8 stores 0). fp8 and int8 store value / scale, divided in f32; a quotient too large for the
/// type becomes its largest value (448, 57344, 127). With one scale per token and head, this call
/// computes the scale (the head's largest magnitude, NaN not counted, over the type's largest; 1 if
/// that is 0) and writes it, too. All other scales are only read.
struct CacheWriteArgs {
  const void* k = nullptr;                     ///< [T, G, D] of in_dtype
  const void* v = nullptr;                     ///< [T, G, D] of in_dtype
  const std::int64_t* slot_mapping = nullptr;  ///< [T] block*S + slot; -1: padding, not written
  PagedKv kv;
  std::int32_t T = 0;
  Dtype in_dtype = Dtype::f32;  ///< f32, bf16 or f16
};
static_assert(std::is_trivially_copyable_v<CacheWriteArgs>);

void cache_write_reference(const CacheWriteArgs& args);
void cache_write_cpu(const CacheWriteArgs& args);

}  // namespace kvhive
