#pragma once
// Loads and stores of a few elements at once, as float values.

#include "kernels/cuda/element.cuh"

namespace kvhive::device {

template <int kCount>
struct Values {
  float of[kCount];
};

template <Dtype kDtype, int kCount>
__device__ __forceinline__ Values<kCount> load_pack(const void* base, std::int64_t pack) {
  const auto stored = static_cast<const Pack<kDtype, kCount>*>(base)[pack];
  Values<kCount> values;
#pragma unroll
  for (int e = 0; e < kCount; ++e) values.of[e] = Element<kDtype>::value(stored.of[e]);
  return values;
}
template <Dtype kDtype, int kCount>
__device__ __forceinline__ void store_pack(void* base, std::int64_t pack,
                                           const Values<kCount>& values) {
  Pack<kDtype, kCount> stored;
#pragma unroll
  for (int e = 0; e < kCount; ++e) stored.of[e] = Element<kDtype>::of(values.of[e]);
  static_cast<Pack<kDtype, kCount>*>(base)[pack] = stored;
}

/// Loads kCount elements of an activation's type, from element pack * kCount on.
template <int kCount>
__device__ __forceinline__ Values<kCount> load_pack(const void* base, std::int64_t pack,
                                                    Dtype dtype) {
  if (dtype == Dtype::bf16) return load_pack<Dtype::bf16, kCount>(base, pack);
  if (dtype == Dtype::f16) return load_pack<Dtype::f16, kCount>(base, pack);
  return load_pack<Dtype::f32, kCount>(base, pack);
}
template <int kCount>
__device__ __forceinline__ void store_pack(void* base, std::int64_t pack, Dtype dtype,
                                           const Values<kCount>& values) {
  if (dtype == Dtype::bf16)
    store_pack<Dtype::bf16>(base, pack, values);
  else if (dtype == Dtype::f16)
    store_pack<Dtype::f16>(base, pack, values);
  else
    store_pack<Dtype::f32>(base, pack, values);
}

}  // namespace kvhive::device
