#include "kernels/cache_write.hpp"

#include "kernels/cuda/element.cuh"
#include "kernels/cuda/launch.cuh"

namespace kvhive {
namespace {

using namespace device;

constexpr unsigned kThreads = 128;  ///< of one token
constexpr int kWarps = kThreads / kWarp;
constexpr int kPacked = 4;  ///< elements that one lane moves at a time
constexpr int kAtOnce = 4;  ///< rows whose loads a warp has in flight

/// What one warp writes: one head of the block's token, of K or V.
struct Row {
  std::int64_t first;  ///< index of the row's first element in args.k or args.v
  std::int64_t block;
  int slot;
  int g;
  bool is_k;

  /// \param i rows are counted in the order [K, V][G]
  __device__ __forceinline__ Row(const CacheWriteArgs& args, std::int64_t block_id, int slot_in,
                                 int i)
      : block(block_id), slot(slot_in), is_k(i < args.kv.G) {
    g = is_k ? i : i - args.kv.G;
    first = (std::int64_t{blockIdx.x} * args.kv.G + g) * args.kv.D;
  }
};

/// Calls write(block, slot, first, count) for the rows of this warp: at most kMost of them at a
/// time, the rows first, first + kWarps ... below count.
template <int kMost, class Write>
__device__ __forceinline__ void for_rows(const CacheWriteArgs& args, Write write) {
  const std::int64_t slot_id = args.slot_mapping[blockIdx.x];
  if (slot_id < 0) return;
  const std::int64_t block = slot_id / args.kv.S;
  const int slot = static_cast<int>(slot_id - block * args.kv.S);
  const int count = 2 * args.kv.G;
  for (int i = static_cast<int>(threadIdx.x / kWarp); i < count; i += kMost * kWarps)
    write(block, slot, i, count);
}

/// What the row's values are divided by. If each token has a scale, the warp computes it from the
/// lanes' largest magnitudes and writes it.
__device__ __forceinline__ float scale_of(const PagedKv& kv, const Row& row, float lane_amax,
                                          int lane) {
  float* plane = row.is_k ? kv.scales.k : kv.scales.v;
  if (plane == nullptr) return 1.0f;
  float* address = scale_address(kv.scales, plane, row.block, row.g, row.slot);
  if (!kv.scales.are_per_token()) return *address;
  const float quotient = warp_max(lane_amax) / largest_of(kv.dtype);
  const float scale = quotient > 0 ? quotient : 1.0f;
  if (lane == 0) *address = scale;
  return scale;
}

/// Moves four elements at a time.
template <Dtype kIn, Dtype kOut>
__global__ void __launch_bounds__(kThreads)
    write_packed(const __grid_constant__ CacheWriteArgs args) {
  using In = Pack<kIn, kPacked>;
  using Out = Pack<kOut, kPacked>;
  const PagedKv& kv = args.kv;
  const int lane = static_cast<int>(threadIdx.x % kWarp);
  const int packs = kv.D / kPacked;
  const bool is_scaled = kv.scales.k != nullptr || kv.scales.v != nullptr;
  for_rows<kAtOnce>(args, [&](std::int64_t block, int slot, int first, int count) {
    const In* in[kAtOnce];
    Out* out[kAtOnce];
    float scale[kAtOnce];
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) {
      in[j] = nullptr;
      if (first + j * kWarps >= count) continue;
      const Row row(args, block, slot, first + j * kWarps);
      in[j] = reinterpret_cast<const In*>(
          static_cast<const typename Element<kIn>::Stored*>(row.is_k ? args.k : args.v) +
          row.first);
      out[j] = reinterpret_cast<Out*>((row.is_k ? kv.k : kv.v) + block * kv.block_stride +
                                      row.g * kv.head_stride + slot * kv.token_stride);
      float amax = 0;
      if (kv.scales.are_per_token())
        for (int p = lane; p < packs; p += kWarp)
#pragma unroll
          for (int e = 0; e < kPacked; ++e)
            amax = fmaxf(amax, fabsf(Element<kIn>::value(in[j][p].of[e])));
      scale[j] = scale_of(kv, row, amax, lane);
    }
    for (int p = lane; p < packs; p += kWarp) {
      In values[kAtOnce];
#pragma unroll
      for (int j = 0; j < kAtOnce; ++j)
        if (in[j] != nullptr) values[j] = in[j][p];
#pragma unroll
      for (int j = 0; j < kAtOnce; ++j) {
        if (in[j] == nullptr) continue;
        Out stored;
#pragma unroll
        for (int e = 0; e < kPacked; ++e) {
          const float value = Element<kIn>::value(values[j].of[e]);
          stored.of[e] = Element<kOut>::of(is_scaled ? value / scale[j] : value);
        }
        out[j][p] = stored;
      }
    }
  });
}

/// Moves one element at a time: any alignment.
__global__ void __launch_bounds__(kThreads)
    write_elements(const __grid_constant__ CacheWriteArgs args) {
  const PagedKv& kv = args.kv;
  const int lane = static_cast<int>(threadIdx.x % kWarp);
  const int element_bytes = static_cast<int>(bytes_of(kv.dtype));
  for_rows<1>(args, [&](std::int64_t block, int slot, int i, int) {
    const Row row(args, block, slot, i);
    const void* in = row.is_k ? args.k : args.v;
    std::byte* head = (row.is_k ? kv.k : kv.v) + block * kv.block_stride + row.g * kv.head_stride;
    float amax = 0;
#pragma unroll 1
    for (int d = lane; d < kv.D; d += kWarp)
      amax = fmaxf(amax, fabsf(load_value(in, row.first + d, args.in_dtype)));
    const float scale = scale_of(kv, row, amax, lane);
#pragma unroll 1
    for (int d = lane; d < kv.D; d += kWarp) {
      const std::int64_t offset = slot * kv.token_stride + d * element_bytes;
      store_value(head + offset, 0, kv.dtype, load_value(in, row.first + d, args.in_dtype) / scale);
    }
  });
}

using Kernel = void (*)(CacheWriteArgs);

template <Dtype kIn>
Kernel packed_kernel(Dtype out) {
  switch (out) {
    case Dtype::f32: return write_packed<kIn, Dtype::f32>;
    case Dtype::bf16: return write_packed<kIn, Dtype::bf16>;
    case Dtype::f16: return write_packed<kIn, Dtype::f16>;
    case Dtype::e4m3: return write_packed<kIn, Dtype::e4m3>;
    case Dtype::e5m2: return write_packed<kIn, Dtype::e5m2>;
    case Dtype::int8: return write_packed<kIn, Dtype::int8>;
  }
  return nullptr;
}

Kernel packed_kernel(Dtype in, Dtype out) {
  return in == Dtype::f32    ? packed_kernel<Dtype::f32>(out)
         : in == Dtype::bf16 ? packed_kernel<Dtype::bf16>(out)
                             : packed_kernel<Dtype::f16>(out);
}

bool can_be_packed(const CacheWriteArgs& args) {
  const PagedKv& kv = args.kv;
  const std::size_t in_bytes = kPacked * bytes_of(args.in_dtype);
  const std::size_t out_bytes = kPacked * bytes_of(kv.dtype);
  const auto in =
      reinterpret_cast<std::uintptr_t>(args.k) | reinterpret_cast<std::uintptr_t>(args.v);
  const auto out = reinterpret_cast<std::uintptr_t>(kv.k) | reinterpret_cast<std::uintptr_t>(kv.v) |
                   static_cast<std::uintptr_t>(kv.block_stride | kv.head_stride | kv.token_stride);
  return kv.layout == PageLayout::rows && kv.D % kPacked == 0 && in % in_bytes == 0 &&
         out % out_bytes == 0;
}

}  // namespace

Expected<void> cache_write_cuda(const CacheWriteArgs& args, CudaStream stream) {
  const PagedKv& kv = args.kv;
  if (kv.layout == PageLayout::packed)
    return failure(Errc::unsupported, "cache write: packed pages are for the CPU only");
  if (bytes_of(args.in_dtype) == 1)
    return failure(Errc::unsupported, "cache write: from " + std::string(to_string(args.in_dtype)) +
                                          "; this type is for the cache only");
  if (kv.G <= 0 || kv.D <= 0 || kv.S <= 0 || args.T < 0)
    return failure(Errc::bad_argument, "cache write: G " + std::to_string(kv.G) + ", D " +
                                           std::to_string(kv.D) + ", S " + std::to_string(kv.S) +
                                           ", T " + std::to_string(args.T));
  if (kv.scales.are_per_token() && (kv.scales.k == nullptr || kv.scales.v == nullptr))
    return failure(Errc::bad_argument,
                   "cache write: each token has a scale, but the pointer to the scales is null");
  if (args.T == 0) return {};
  const Kernel kernel =
      can_be_packed(args) ? packed_kernel(args.in_dtype, kv.dtype) : write_elements;
  return launch(kernel, dim3{static_cast<unsigned>(args.T), 1, 1}, dim3{kThreads, 1, 1}, 0, stream,
                args);
}

}  // namespace kvhive
