#pragma once
// The only header that kernels include for the device. Under nvcc it is CUDA; under any other
// compiler it is the emulator in kernels/simt. Inline PTX is written here and nowhere else, each
// piece beside the call into the emulator that stands for it.

#include <cstddef>
#include <cstdint>

#if defined(__CUDACC__)
#include <cuda_runtime.h>
#define KV_CALLER
#define KV_ALSO_CALLER
#define KV_FORWARD_CALLER
#else
#include "config/dtype.hpp"
#include "kernels/simt/cuda.hpp"
#include "kernels/simt/tensor_core.hpp"
#define KV_CALLER simt::Line line = simt::Line::here()
#define KV_ALSO_CALLER , KV_CALLER
#define KV_FORWARD_CALLER , line
#endif
#if defined(__CUDA_ARCH__) || !defined(__CUDACC__)
#define KV_DEVICE_CODE 1  // false in the pass of nvcc that compiles host code
#endif

namespace kvhive::device {

inline constexpr int kWarp = 32;
inline constexpr std::uint32_t kAllLanes = 0xffffffffu;
inline constexpr float kInfinity = __builtin_huge_valf();
inline constexpr float kLog2E = 1.4426950408889634f;
inline constexpr float kLn2 = 0.6931471805599453f;

/// 16 (or 8) bytes that one load or store moves; aligned to their size.
struct alignas(16) Bytes16 {
  std::uint32_t words[4];
};
struct alignas(8) Bytes8 {
  std::uint32_t words[2];
};

/// The block's dynamic shared memory, of the size given at launch. Kernels use no other.
__device__ __forceinline__ std::byte* shared_memory() {
#if defined(__CUDACC__)
  extern __shared__ __align__(1024) unsigned char kv_shared[];
  return reinterpret_cast<std::byte*>(kv_shared);
#else
  return simt::self->shared;
#endif
}

#if defined(__CUDA_ARCH__)
__device__ __forceinline__ std::uint32_t shared_address(const void* pointer) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(pointer));
}
#endif

/// cp.async: starts to copy 4, 8 or 16 aligned bytes to shared memory. If !wanted, writes zeros and
/// does not read `global`.
template <int kBytes>
__device__ __forceinline__ void copy_async(void* shared, const void* global,
                                           bool wanted KV_ALSO_CALLER) {
  static_assert(kBytes == 4 || kBytes == 8 || kBytes == 16);
#if defined(__CUDA_ARCH__)
  const int bytes = wanted ? kBytes : 0;
  if constexpr (kBytes == 16)
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;\n" ::"r"(shared_address(shared)),
                 "l"(global), "r"(bytes)
                 : "memory");
  else
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;\n" ::"r"(shared_address(shared)),
                 "l"(global), "n"(kBytes), "r"(bytes)
                 : "memory");
#elif defined(KV_DEVICE_CODE)
  simt::expect_aligned(shared, kBytes, "cp.async", line);
  simt::expect_aligned(global, kBytes, "cp.async", line);
  const simt::AsyncCopy copy{shared, global, wanted ? kBytes : 0u, wanted ? 0u : kBytes};
  if (simt::is_delivered_early(copy)) simt::deliver(copy);
#endif
}
/// Makes a group of this thread's copies since the last commit.
__device__ __forceinline__ void commit_copies() {
#if defined(__CUDA_ARCH__)
  asm volatile("cp.async.commit_group;\n" ::: "memory");
#elif defined(KV_DEVICE_CODE)
  simt::async_commit();
#endif
}
/// Waits until all but the latest kPending groups of this thread's copies have landed. Other
/// threads see the data only after a barrier.
template <int kPending>
__device__ __forceinline__ void wait_copies() {
#if defined(__CUDA_ARCH__)
  asm volatile("cp.async.wait_group %0;\n" ::"n"(kPending) : "memory");
#elif defined(KV_DEVICE_CODE)
  simt::AsyncCopy copy;
  while (simt::next_async_copy(kPending, &copy)) simt::deliver(copy);
#endif
}

/// ldmatrix: loads four 8x8 matrices of 16-bit elements. Lane i passes the address of row i%8 of
/// matrix i/8.
__device__ __forceinline__ void load_matrices(std::uint32_t (&fragment)[4],
                                              const void* row KV_ALSO_CALLER) {
#if defined(__CUDA_ARCH__)
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];\n"
               : "=r"(fragment[0]), "=r"(fragment[1]), "=r"(fragment[2]), "=r"(fragment[3])
               : "r"(shared_address(row))
               : "memory");
#elif defined(KV_DEVICE_CODE)
  simt::ldmatrix_x4(fragment, row, simt::Transposed::no, line);
#endif
}
__device__ __forceinline__ void load_matrices_transposed(std::uint32_t (&fragment)[4],
                                                         const void* row KV_ALSO_CALLER) {
#if defined(__CUDA_ARCH__)
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];\n"
               : "=r"(fragment[0]), "=r"(fragment[1]), "=r"(fragment[2]), "=r"(fragment[3])
               : "r"(shared_address(row))
               : "memory");
#elif defined(KV_DEVICE_CODE)
  simt::ldmatrix_x4(fragment, row, simt::Transposed::yes, line);
#endif
}

/// d [16][8] += a [16][16] * b [16][8]. Fragments as in the PTX ISA, "mma.m16n8k16".
__device__ __forceinline__ void mma_bf16(float (&d)[4], const std::uint32_t (&a)[4],
                                         const std::uint32_t (&b)[2] KV_ALSO_CALLER) {
#if defined(__CUDA_ARCH__)
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};\n"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#elif defined(KV_DEVICE_CODE)
  simt::mma_m16n8k16(d, a, b, "mma.bf16", float_of_bf16, line);
#endif
}
__device__ __forceinline__ void mma_f16(float (&d)[4], const std::uint32_t (&a)[4],
                                        const std::uint32_t (&b)[2] KV_ALSO_CALLER) {
#if defined(__CUDA_ARCH__)
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};\n"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#elif defined(KV_DEVICE_CODE)
  simt::mma_m16n8k16(d, a, b, "mma.f16", float_of_f16, line);
#endif
}

/// x * y, rounded; the compiler never fuses it with an addition.
__device__ __forceinline__ float rounded_product(float x, float y) {
#if defined(__CUDA_ARCH__)
  return __fmul_rn(x, y);
#else
  return x * y;
#endif
}

/// The largest x of the warp's lanes; NaN is ignored.
__device__ __forceinline__ float warp_max(float x) {
  for (int distance = kWarp / 2; distance > 0; distance /= 2)
    x = fmaxf(x, __shfl_xor_sync(kAllLanes, x, distance));
  return x;
}

/// 2^x with an error of about 2 ulp.
__device__ __forceinline__ float exp2_approximate(float x) {
#if defined(__CUDA_ARCH__)
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
#else
  return exp2f(x);
#endif
}

/// log2(x), approximately.
__device__ __forceinline__ float log2_approximate(float x) {
#if defined(__CUDA_ARCH__)
  float y;
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
#else
  return log2f(x);
#endif
}

}  // namespace kvhive::device
