#pragma once
// Softmax states of the sixteen rows of a warp.

#include "kernels/cuda/attention_state.cuh"
#include "kernels/cuda/mma_operands.cuh"

namespace kvhive::device {

/// The running states of a lane's two rows. max is that of the whole row, sum that of this lane's
/// tokens only.
template <int D>
struct MmaStates {
  float max[2] = {-kInfinity, -kInfinity};
  float sum[2] = {};
  MmaResult<D> acc = {};

  /// Raises the max to `top` where `top` is larger. Call it before weights of scores up to `top`
  /// are added.
  __device__ __forceinline__ void raise(const float (&top)[2]) {
    // In most steps no max rises; rescaling by 1 would change no bit.
    if (!__any_sync(kAllLanes, top[0] > max[0] || top[1] > max[1])) return;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float shrink = exp2_approximate(max[half] - (top[half] > -kInfinity ? top[half] : 0));
      max[half] = top[half];
      sum[half] = rounded_product(sum[half], shrink);
#pragma unroll
      for (int n = 0; n < D / 8; ++n) {
        acc[n][2 * half] = rounded_product(acc[n][2 * half], shrink);
        acc[n][2 * half + 1] = rounded_product(acc[n][2 * half + 1], shrink);
      }
    }
  }

  /// Makes sum that of the whole row.
  __device__ __forceinline__ void gather_sums() {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      sum[half] += __shfl_xor_sync(kAllLanes, sum[half], 1);
      sum[half] += __shfl_xor_sync(kAllLanes, sum[half], 2);
    }
  }
};

}  // namespace kvhive::device
