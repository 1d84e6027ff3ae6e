#pragma once
// Three small correct kernels. Each can be run with a seeded bug that the emulator or a sanitizer
// must find.

#include "kernels/cuda/device.cuh"

namespace kvhive::samples {

enum class Bug : int {
  none,
  missing_syncthreads,
  missing_syncwarp,
  divergent_barrier,
  exit_before_barrier,
  wrong_shuffle_mask,
  exited_lane,
  mixed_intrinsics,
  shared_overflow,
  global_overrun,
  misaligned_load,
  misaligned_copy,
  shared_output,
  missing_copy_wait,
  missing_barrier_after_wait,
};

inline constexpr int kThreads = 128;

/// Passes in[i] through shared memory and shuffles within its block to out[i]. in, out: [blocks,
/// kThreads].
inline __global__ void pass_around(const float* in, float* out, Bug bug) {
  auto* values = reinterpret_cast<float*>(device::shared_memory());  // [kThreads]
  const unsigned t = threadIdx.x;
  const unsigned i = blockIdx.x * blockDim.x + t;
  values[t] = in[i];
  if (bug != Bug::missing_syncthreads) __syncthreads();
  float x = values[(t + 33) % kThreads];
  if (bug == Bug::divergent_barrier) {
    if (t < 64)
      __syncthreads();
    else
      __syncthreads();
  }
  if (bug == Bug::exit_before_barrier) {
    if (t == 5) return;
    __syncthreads();
  }
  if (bug == Bug::exited_lane && t % 32 == 31) return;
  if (bug == Bug::wrong_shuffle_mask && t % 32 >= 16)
    x += __shfl_xor_sync(0xffffu, x, 1);
  else if (bug == Bug::mixed_intrinsics && t % 32 >= 16)
    x += static_cast<float>(__ballot_sync(device::kAllLanes, 1) & 1u);
  else
    x += __shfl_xor_sync(device::kAllLanes, x, 1);
  if (bug == Bug::shared_overflow) values[kThreads + t] = x;
  if (bug == Bug::global_overrun) x += in[gridDim.x * blockDim.x + t];
  if (bug == Bug::misaligned_load)
    x += static_cast<float>(reinterpret_cast<const device::Bytes8*>(in + 1)->words[0]);
  out[bug == Bug::shared_output ? 0 : i] = x;
}

/// out[t] = the value that thread t + 16 copied asynchronously; the last 8 threads copy zeros. in:
/// [4 * kThreads], out: [kThreads].
inline __global__ void copy_async(const float* in, float* out, Bug bug) {
  auto* values = reinterpret_cast<float*>(device::shared_memory());  // [kThreads][4]
  const unsigned t = threadIdx.x;
  const float* from = in + 4 * t + (bug == Bug::misaligned_copy ? 1 : 0);
  device::copy_async<16>(values + 4 * t, from, t < kThreads - 8);
  device::commit_copies();
  if (bug != Bug::missing_copy_wait) device::wait_copies<0>();
  if (bug != Bug::missing_barrier_after_wait) __syncthreads();
  out[t] = values[(4 * t + 64) % (4 * kThreads)];
  if (bug == Bug::missing_copy_wait) device::wait_copies<0>();
}

/// One warp: d = a * b^T on the tensor core. a [16][16], b [8][16] bf16 are copied asynchronously,
/// b's rows twice; d [16][8].
inline __global__ void multiply(const std::uint16_t* a, const std::uint16_t* b, float* d, Bug bug) {
  auto* rows = reinterpret_cast<std::uint16_t*>(device::shared_memory());  // a [16][16], b [16][16]
  const unsigned lane = threadIdx.x;
  device::copy_async<16>(rows + 8 * lane, a + 8 * lane, true);
  device::copy_async<16>(rows + 256 + 8 * lane, b + 8 * (lane % 16), true);
  device::commit_copies();
  device::wait_copies<0>();
  if (bug != Bug::missing_syncwarp) __syncwarp();
  std::uint32_t a_fragment[4], b_fragment[4];
  device::load_matrices(a_fragment, rows + lane % 16 * 16 + lane / 16 * 8);
  device::load_matrices(b_fragment,
                        rows + 256 + (lane / 16 * 8 + lane % 8) * 16 + lane / 8 % 2 * 8);
  float sums[4] = {};
  device::mma_bf16(sums, a_fragment, {b_fragment[0], b_fragment[1]});
  for (unsigned i = 0; i < 4; ++i) d[(lane / 4 + i / 2 * 8) * 8 + lane % 4 * 2 + i % 2] = sums[i];
}

}  // namespace kvhive::samples
