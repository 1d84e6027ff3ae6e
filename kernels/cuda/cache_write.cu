#include "kernels/cache_write.hpp"

#include "kernels/cuda/element.cuh"
#include "kernels/cuda/launch.cuh"

namespace kvhive {
namespace {

using namespace device;

constexpr unsigned kThreads = 128;
constexpr unsigned kRows = kThreads / kWarp;  ///< rows of a block of threads, one per warp
constexpr int kPacked = 4;                    ///< elements that one lane moves at a time

/// What one warp writes: one head of one token, of K or V. Rows are counted in the order [T][K,
/// V][G].
struct Row {
  std::int64_t first;  ///< index of the row's first element in args.k or args.v
  std::int64_t block;
  int slot;
  int g;
  bool is_k;

  static __device__ __forceinline__ bool find(const CacheWriteArgs& args, Row* row) {
    const std::int64_t i = std::int64_t{blockIdx.x} * kRows + threadIdx.x / kWarp;
    const int G = args.kv.G;
    const std::int64_t token = i / (2 * G);
    if (token >= args.T) return false;
    const std::int64_t slot_id = args.slot_mapping[token];
    if (slot_id < 0) return false;
    const int rest = static_cast<int>(i % (2 * G));
    row->g = rest % G;
    row->is_k = rest < G;
    row->first = (token * G + row->g) * args.kv.D;
    row->block = slot_id / args.kv.S;
    row->slot = static_cast<int>(slot_id % args.kv.S);
    return true;
  }
};

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
  Row row;
  if (!Row::find(args, &row)) return;
  const PagedKv& kv = args.kv;
  const int lane = static_cast<int>(threadIdx.x % kWarp);
  const auto* in = reinterpret_cast<const Pack<kIn, kPacked>*>(
      static_cast<const typename Element<kIn>::Stored*>(row.is_k ? args.k : args.v) + row.first);
  auto* out = reinterpret_cast<Pack<kOut, kPacked>*>(
      (row.is_k ? kv.k : kv.v) + row.block * kv.block_stride + row.g * kv.head_stride +
      row.slot * kv.token_stride);
  const int packs = kv.D / kPacked;
  float amax = 0;
  if (kv.scales.are_per_token())
    for (int p = lane; p < packs; p += kWarp)
#pragma unroll
      for (int e = 0; e < kPacked; ++e) amax = fmaxf(amax, fabsf(Element<kIn>::value(in[p].of[e])));
  const float scale = scale_of(kv, row, amax, lane);
  for (int p = lane; p < packs; p += kWarp) {
    const Pack<kIn, kPacked> values = in[p];
    Pack<kOut, kPacked> stored;
#pragma unroll
    for (int e = 0; e < kPacked; ++e)
      stored.of[e] = Element<kOut>::of(Element<kIn>::value(values.of[e]) / scale);
    out[p] = stored;
  }
}

/// Moves one element at a time: any alignment.
__global__ void __launch_bounds__(kThreads)
    write_elements(const __grid_constant__ CacheWriteArgs args) {
  Row row;
  if (!Row::find(args, &row)) return;
  const PagedKv& kv = args.kv;
  const int lane = static_cast<int>(threadIdx.x % kWarp);
  const void* in = row.is_k ? args.k : args.v;
  std::byte* head = (row.is_k ? kv.k : kv.v) + row.block * kv.block_stride + row.g * kv.head_stride;
  const int element_bytes = static_cast<int>(bytes_of(kv.dtype));
  float amax = 0;
  for (int d = lane; d < kv.D; d += kWarp)
    amax = fmaxf(amax, fabsf(load_value(in, row.first + d, args.in_dtype)));
  const float scale = scale_of(kv, row, amax, lane);
  for (int d = lane; d < kv.D; d += kWarp) {
    const std::int64_t offset = row.slot * kv.token_stride + d * element_bytes;
    store_value(head + offset, 0, kv.dtype, load_value(in, row.first + d, args.in_dtype) / scale);
  }
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
  const std::int64_t rows = std::int64_t{args.T} * 2 * kv.G;
  const std::int64_t blocks = (rows + kRows - 1) / kRows;
  if (blocks > 0x7fffffff)
    return failure(Errc::unsupported, "cache write: " + std::to_string(rows) + " rows in one call");
  const Kernel kernel =
      can_be_packed(args) ? packed_kernel(args.in_dtype, kv.dtype) : write_elements;
  return launch(kernel, dim3{static_cast<unsigned>(blocks), 1, 1}, dim3{kThreads, 1, 1}, 0, stream,
                args);
}

}  // namespace kvhive
