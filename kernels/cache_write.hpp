#pragma once
// Writes the K and V of new tokens into their slots (vLLM: reshape_and_cache).

#include <cstdint>
#include <type_traits>

#include "kernels/paged_kv.hpp"

namespace kvhive {

struct CacheWriteArgs {
  const float* k = nullptr;                    ///< [T, G, D]
  const float* v = nullptr;                    ///< [T, G, D]
  const std::int64_t* slot_mapping = nullptr;  ///< [T] block*S + slot; -1 = padding, skipped
  PagedKv kv;  ///< values are rounded to kv.dtype (nearest, ties to even)
  std::int32_t T = 0;
};
static_assert(std::is_trivially_copyable_v<CacheWriteArgs>);

void cache_write_reference(const CacheWriteArgs& args);
void cache_write_cpu(const CacheWriteArgs& args);

}  // namespace kvhive
