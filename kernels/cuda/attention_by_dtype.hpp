#pragma once
// Attention for one element type of the cache. Each pair of kernel and element type is compiled as
// a file of its own, made of attention_instance.cu.in: together they would take nvcc many minutes.

#include <cstdint>

#include "kernels/cuda/cuda_kernels.hpp"

namespace kvhive::device {

/// Without tensor cores (simt_attention.cuh). D is 8..256, a multiple of 8.
template <Dtype kKv>
[[nodiscard]] Expected<void> simt_attention_of(const PagedAttentionArgs& args,
                                               const AttentionWork& work, CudaStream stream);

/// On tensor cores (mma_attention.cuh), where is_for_tensor_cores() says so.
template <Dtype kKv>
[[nodiscard]] Expected<void> mma_attention_of(const PagedAttentionArgs& args,
                                              const AttentionWork& work, CudaStream stream);

/// The largest power of two, at most 16, that divides all addresses and strides of the cache.
inline std::uintptr_t alignment_of(const PagedKv& kv) {
  const std::uintptr_t all =
      reinterpret_cast<std::uintptr_t>(kv.k) | reinterpret_cast<std::uintptr_t>(kv.v) |
      static_cast<std::uintptr_t>(kv.block_stride | kv.head_stride | kv.token_stride) | 16;
  return all & (~all + 1);
}

}  // namespace kvhive::device
