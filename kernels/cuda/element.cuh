#pragma once
// Conversions between stored elements and their values. They round as config/dtype.hpp and
// config/fp8.hpp do, with the GPU's own instructions where there is a GPU.

#include <cstdint>

#include "config/dtype.hpp"
#include "config/fp8.hpp"
#include "kernels/cuda/device.cuh"
#include "kernels/paged_kv.hpp"

#if defined(__CUDACC__)
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#endif

namespace kvhive::device {

__device__ __forceinline__ float value_of_bf16(std::uint16_t bits) {
#if defined(__CUDACC__)
  return __uint_as_float(std::uint32_t{bits} << 16);
#else
  return float_of_bf16(bits);
#endif
}
__device__ __forceinline__ std::uint16_t to_bf16(float value) {
#if defined(__CUDACC__)
  return __bfloat16_as_ushort(__float2bfloat16_rn(value));
#else
  return bf16_of_float(value);
#endif
}
__device__ __forceinline__ float value_of_f16(std::uint16_t bits) {
#if defined(__CUDACC__)
  return __half2float(__ushort_as_half(bits));
#else
  return float_of_f16(bits);
#endif
}
__device__ __forceinline__ std::uint16_t to_f16(float value) {
#if defined(__CUDACC__)
  return __half_as_ushort(__float2half_rn(value));
#else
  return f16_of_float(value);
#endif
}

template <Dtype>
struct Element;

template <>
struct Element<Dtype::f32> {
  using Stored = float;
  static __device__ __forceinline__ float value(Stored x) { return x; }
  static __device__ __forceinline__ Stored of(float x) { return x; }
};
template <>
struct Element<Dtype::bf16> {
  using Stored = std::uint16_t;
  static __device__ __forceinline__ float value(Stored x) { return value_of_bf16(x); }
  static __device__ __forceinline__ Stored of(float x) { return to_bf16(x); }
};
template <>
struct Element<Dtype::f16> {
  using Stored = std::uint16_t;
  static __device__ __forceinline__ float value(Stored x) { return value_of_f16(x); }
  static __device__ __forceinline__ Stored of(float x) { return to_f16(x); }
};
template <>
struct Element<Dtype::e4m3> {
  using Stored = std::uint8_t;
  static __device__ __forceinline__ float value(Stored x) {
#if defined(__CUDACC__)
    return __half2float(__half(__nv_cvt_fp8_to_halfraw(x, __NV_E4M3)));
#else
    return float_of_e4m3(x);
#endif
  }
  static __device__ __forceinline__ Stored of(float x) {
#if defined(__CUDACC__)
    return __nv_cvt_float_to_fp8(x, __NV_SATFINITE, __NV_E4M3);
#else
    return e4m3_of_float(x);
#endif
  }
};
template <>
struct Element<Dtype::e5m2> {
  using Stored = std::uint8_t;
  static __device__ __forceinline__ float value(Stored x) {
    return value_of_f16(static_cast<std::uint16_t>(x << 8));
  }
  static __device__ __forceinline__ Stored of(float x) {
#if defined(__CUDACC__)
    return __nv_cvt_float_to_fp8(x, __NV_SATFINITE, __NV_E5M2);
#else
    return e5m2_of_float(x);
#endif
  }
};
template <>
struct Element<Dtype::int8> {
  using Stored = std::int8_t;
  static __device__ __forceinline__ float value(Stored x) { return static_cast<float>(x); }
  static __device__ __forceinline__ Stored of(float x) {
#if defined(__CUDACC__)
    return static_cast<Stored>(__float2int_rn(fminf(fmaxf(x != x ? 0.0f : x, -127.0f), 127.0f)));
#else
    return int8_of_float(x);
#endif
  }
};

/// kCount elements that one load or store moves.
template <Dtype kDtype, int kCount>
struct alignas(sizeof(typename Element<kDtype>::Stored) * kCount) Pack {
  typename Element<kDtype>::Stored of[kCount];
};

/// Two 16-bit elements in one register, `low` in its lower half.
template <Dtype kDtype>
__device__ __forceinline__ std::uint32_t pair_of(float low, float high) {
#if defined(__CUDACC__)
  if constexpr (kDtype == Dtype::bf16) {  // one instruction converts both
    const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    return *reinterpret_cast<const std::uint32_t*>(&pair);
  } else {
    const __half2 pair = __floats2half2_rn(low, high);
    return *reinterpret_cast<const std::uint32_t*>(&pair);
  }
#else
  return Element<kDtype>::of(low) | std::uint32_t{Element<kDtype>::of(high)} << 16;
#endif
}

/// Converts two 8-bit elements to two f16, exactly; the lower byte of `two` becomes the lower half.
template <Dtype kDtype>
__device__ __forceinline__ std::uint32_t f16_pair_of(std::uint16_t two) {
  static_assert(bytes_of(kDtype) == 1);
#if defined(__CUDACC__)
  if constexpr (kDtype == Dtype::e4m3) {
    const __half2 pair(__nv_cvt_fp8x2_to_halfraw2(two, __NV_E4M3));
    return *reinterpret_cast<const std::uint32_t*>(&pair);
  } else if constexpr (kDtype == Dtype::int8) {
    // The bits of x + 128 in the mantissa of the f16 1024 make 1024 + (x + 128).
    const std::uint32_t bits = two ^ 0x8080u;
    const std::uint32_t moved = 0x64006400u | (bits & 0xffu) | (bits & 0xff00u) << 8;
    const __half2 pair =
        __hsub2(*reinterpret_cast<const __half2*>(&moved), __floats2half2_rn(1152.0f, 1152.0f));
    return *reinterpret_cast<const std::uint32_t*>(&pair);
  }
#endif
  if constexpr (kDtype == Dtype::e5m2)  // an e5m2 is the upper half of an f16
    return (two & 0xffu) << 8 | (two & 0xff00u) << 16;
  else
    return pair_of<Dtype::f16>(
        Element<kDtype>::value(static_cast<typename Element<kDtype>::Stored>(two)),
        Element<kDtype>::value(static_cast<typename Element<kDtype>::Stored>(two >> 8)));
}

/// For a dtype that is known at run time only. Meant for one call per row, not per element of a
/// cache.
__device__ __forceinline__ float load_value(const void* base, std::int64_t i, Dtype dtype) {
  switch (dtype) {
    case Dtype::f32: return static_cast<const float*>(base)[i];
    case Dtype::bf16: return value_of_bf16(static_cast<const std::uint16_t*>(base)[i]);
    case Dtype::f16: return value_of_f16(static_cast<const std::uint16_t*>(base)[i]);
    case Dtype::e4m3: return Element<Dtype::e4m3>::value(static_cast<const std::uint8_t*>(base)[i]);
    case Dtype::e5m2: return Element<Dtype::e5m2>::value(static_cast<const std::uint8_t*>(base)[i]);
    case Dtype::int8: return static_cast<float>(static_cast<const std::int8_t*>(base)[i]);
  }
  return 0;
}
__device__ __forceinline__ void store_value(void* base, std::int64_t i, Dtype dtype, float value) {
  switch (dtype) {
    case Dtype::f32: static_cast<float*>(base)[i] = value; break;
    case Dtype::bf16: static_cast<std::uint16_t*>(base)[i] = to_bf16(value); break;
    case Dtype::f16: static_cast<std::uint16_t*>(base)[i] = to_f16(value); break;
    case Dtype::e4m3: static_cast<std::uint8_t*>(base)[i] = Element<Dtype::e4m3>::of(value); break;
    case Dtype::e5m2: static_cast<std::uint8_t*>(base)[i] = Element<Dtype::e5m2>::of(value); break;
    case Dtype::int8: static_cast<std::int8_t*>(base)[i] = Element<Dtype::int8>::of(value); break;
  }
}

/// The address of the scale of (block, head, slot); see KvScales.
__device__ __forceinline__ float* scale_address(const KvScales& scales, float* plane,
                                                std::int64_t block, int g, int slot) {
  return reinterpret_cast<float*>(reinterpret_cast<std::byte*>(plane) +
                                  block * scales.block_stride + g * scales.head_stride +
                                  slot * scales.token_stride);
}

}  // namespace kvhive::device
