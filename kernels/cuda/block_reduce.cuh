#pragma once
// Reductions over a warp or a block in one fixed order, so that every schedule gives the same bits.

#include "kernels/cuda/device.cuh"

namespace kvhive::device {

template <class T, class Combine>
__device__ __forceinline__ T warp_reduce(T value, Combine combine) {
  for (int distance = kWarp / 2; distance > 0; distance /= 2)
    value = combine(value, __shfl_xor_sync(kAllLanes, value, distance));
  return value;
}

/// Every thread of the block must call it; every thread gets the result. \param scratch one T per
/// warp, in shared memory; may be reused at once when the call returns
template <int kThreads, class T, class Combine>
__device__ __forceinline__ T block_reduce(T value, T* scratch, Combine combine) {
  constexpr int kWarps = kThreads / kWarp;
  value = warp_reduce(value, combine);
  if (threadIdx.x % kWarp == 0) scratch[threadIdx.x / kWarp] = value;
  __syncthreads();
  T all = scratch[0];
#pragma unroll
  for (int warp = 1; warp < kWarps; ++warp) all = combine(all, scratch[warp]);
  __syncthreads();
  return all;
}

}  // namespace kvhive::device
