#pragma once
// CUDA's names for kernel sources that another compiler than nvcc compiles: the language
// extensions, warp intrinsics and atomics that this project's kernels use. Others do not compile:
// add them here, with a test.

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "kernels/simt/kernel_calls.hpp"

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define __grid_constant__

#define threadIdx (::simt::self->thread)
#define blockIdx (::simt::self->block)
#define blockDim (::simt::self->block_dim)
#define gridDim (::simt::self->grid_dim)

namespace simt {

using dim3 = Dim3;

/// The value that lane `source` passed, or the lane's own value if `source` is outside 0..31.
template <class T>
T shuffle(const char* operation, std::uint32_t mask, T value, int source, Line line) {
  static_assert(sizeof(T) <= 8);
  std::uint64_t word = 0;
  std::memcpy(&word, &value, sizeof value);
  const WarpWords brought = warp_exchange(mask, operation, &word, 1, MemoryOrder::none, line);
  if (source < 0 || source > 31) return value;
  if ((brought.lanes >> source & 1) == 0)
    fail("shuffle: reads a lane that does not take part", line);
  std::memcpy(&value, &brought.of[source][0], sizeof value);
  return value;
}

inline std::uint32_t ballot(const char* operation, std::uint32_t mask, bool vote, Line line) {
  const std::uint64_t word = vote;
  const WarpWords brought = warp_exchange(mask, operation, &word, 1, MemoryOrder::none, line);
  std::uint32_t votes = 0;
  for (int lane = 0; lane < 32; ++lane)
    if ((brought.lanes >> lane & 1) != 0 && brought.of[lane][0] != 0) votes |= 1u << lane;
  return votes;
}

}  // namespace simt

using simt::dim3;

struct alignas(8) float2 {
  float x, y;
};
struct alignas(16) float4 {
  float x, y, z, w;
};
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }

inline int min(int a, int b) { return b < a ? b : a; }
inline int max(int a, int b) { return a < b ? b : a; }

/// The number of the lowest bit that is 1, counted from 1; 0 if there is none.
inline int __ffs(int bits) { return __builtin_ffs(bits); }
/// How many bits are 1.
inline int __popc(unsigned bits) { return std::popcount(bits); }
inline unsigned __float_as_uint(float value) { return std::bit_cast<unsigned>(value); }

inline void __syncthreads(simt::Line line = simt::Line::here()) { simt::barrier(line); }

inline void __syncwarp(std::uint32_t mask = ~0u, simt::Line line = simt::Line::here()) {
  simt::warp_exchange(mask, "__syncwarp", nullptr, 0, simt::MemoryOrder::ordered, line);
}

template <class T>
T __shfl_sync(std::uint32_t mask, T value, int source, int width = 32,
              simt::Line line = simt::Line::here()) {
  const int lane = static_cast<int>(simt::self->lane);
  const int first = lane & ~(width - 1);
  return simt::shuffle("__shfl_sync", mask, value, first | (source & (width - 1)), line);
}
template <class T>
T __shfl_xor_sync(std::uint32_t mask, T value, int lane_mask, int width = 32,
                  simt::Line line = simt::Line::here()) {
  const int lane = static_cast<int>(simt::self->lane);
  const int source = lane ^ lane_mask;
  return simt::shuffle("__shfl_xor_sync", mask, value, source > (lane | (width - 1)) ? -1 : source,
                       line);
}
template <class T>
T __shfl_down_sync(std::uint32_t mask, T value, unsigned delta, int width = 32,
                   simt::Line line = simt::Line::here()) {
  const int lane = static_cast<int>(simt::self->lane);
  const int source = lane + static_cast<int>(delta);
  return simt::shuffle("__shfl_down_sync", mask, value, source > (lane | (width - 1)) ? -1 : source,
                       line);
}
template <class T>
T __shfl_up_sync(std::uint32_t mask, T value, unsigned delta, int width = 32,
                 simt::Line line = simt::Line::here()) {
  const int lane = static_cast<int>(simt::self->lane);
  const int source = lane - static_cast<int>(delta);
  return simt::shuffle("__shfl_up_sync", mask, value, source < (lane & ~(width - 1)) ? -1 : source,
                       line);
}

inline unsigned __ballot_sync(std::uint32_t mask, int vote, simt::Line line = simt::Line::here()) {
  return simt::ballot("__ballot_sync", mask, vote != 0, line);
}
inline int __any_sync(std::uint32_t mask, int vote, simt::Line line = simt::Line::here()) {
  return simt::ballot("__any_sync", mask, vote != 0, line) != 0;
}
inline int __all_sync(std::uint32_t mask, int vote, simt::Line line = simt::Line::here()) {
  return simt::ballot("__all_sync", mask, vote == 0, line) == 0;
}

/// Relaxed, as CUDA's atomics are: they order no other access.
template <class T>
T atomicAdd(T* address, T value) {
  return __atomic_fetch_add(address, value, __ATOMIC_RELAXED);
}
template <class T>
T atomicMax(T* address, T value) {
  T old = __atomic_load_n(address, __ATOMIC_RELAXED);
  while (old < value && !__atomic_compare_exchange_n(address, &old, value, false, __ATOMIC_RELAXED,
                                                     __ATOMIC_RELAXED)) {
  }
  return old;
}
template <class T>
T atomicCAS(T* address, T expected, T value) {
  __atomic_compare_exchange_n(address, &expected, value, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
  return expected;
}
