// What adapters (LoRA) add to a product, each row with its own adapter: down to the rank, and up
// again.

#include <algorithm>

#include "kernels/cuda/block_reduce.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/packs.cuh"
#include "kernels/row_product.hpp"

namespace kvhive {
namespace {

using namespace device;

constexpr int kPack = 4;  ///< elements that one thread loads at a time
constexpr int kDownThreads = 128;
constexpr int kDownWarps = kDownThreads / kWarp;
constexpr int kUpThreads = 256;

/// Rows that a block of threads goes over, one after the other. A prompt's rows mostly have one
/// adapter, whose matrices then come from L1; a decode step has few rows, and needs the blocks.
constexpr int kRowsOfAPrompt = 8;
constexpr std::int32_t kFewRows = 256;
constexpr int rows_of_a_block(std::int32_t T) { return T > kFewRows ? kRowsOfAPrompt : 1; }

/// A row's matrices; rank 0 = it has none.
__device__ __forceinline__ AdapterMatrices matrices_of(const AdapterProductArgs& args, int row) {
  const std::int32_t adapter = args.adapters[row];
  return adapter < 0 ? AdapterMatrices{} : args.matrices[adapter];
}

/// narrow = A x. A warp adds up one element.
__global__ void __launch_bounds__(kDownThreads)
    adapter_down(const __grid_constant__ AdapterProductArgs args, int rows) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int r = static_cast<int>(blockIdx.y) * kDownWarps + static_cast<int>(threadIdx.x) / kWarp;
  const int packs = args.K / kPack;
  const int first = static_cast<int>(blockIdx.x) * rows;
  for (int row = first; row < first + rows && row < args.T; ++row) {
    const AdapterMatrices of = matrices_of(args, row);
    const int used = r < of.rank ? packs : 0;
    float sum = 0;
    for (int pack = lane; pack < used; pack += kWarp) {
      const auto x = load_pack<kPack>(args.x, std::int64_t{row} * packs + pack, args.dtype);
      const auto a = load_pack<kPack>(args.base + of.a, std::int64_t{r} * packs + pack, args.dtype);
#pragma unroll
      for (int e = 0; e < kPack; ++e) sum = fmaf(a.of[e], x.of[e], sum);
    }
    sum = warp_reduce(sum, [](float a, float b) { return a + b; });
    if (lane == 0 && used > 0) args.narrow[std::int64_t{row} * args.R + r] = sum;
  }
}

/// y += scale B narrow. A thread has one column.
__global__ void __launch_bounds__(kUpThreads)
    adapter_up(const __grid_constant__ AdapterProductArgs args, int rows) {
  const int n = static_cast<int>(blockIdx.y) * kUpThreads + static_cast<int>(threadIdx.x);
  if (n >= args.N) return;
  const int first = static_cast<int>(blockIdx.x) * rows;
  for (int row = first; row < first + rows && row < args.T; ++row) {
    const AdapterMatrices of = matrices_of(args, row);
    if (of.rank == 0) continue;
    const float* const narrow = args.narrow + std::int64_t{row} * args.R;
    const std::int64_t b = std::int64_t{n} * of.rank;
    float sum = 0;
#pragma unroll 1  // unrolled it spills
    for (int r = 0; r < of.rank; ++r)
      sum = fmaf(load_value(args.base + of.b, b + r, args.dtype), narrow[r], sum);
    const std::int64_t at = row * args.y_stride + n;
    store_value(args.y, at, args.out_dtype,
                fmaf(of.scale, sum, load_value(args.y, at, args.out_dtype)));
  }
}

}  // namespace

Expected<void> adapter_product_cuda(const AdapterProductArgs& given, CudaStream stream) {
  AdapterProductArgs args = given;
  if (args.y_stride == 0) args.y_stride = args.N;
  const std::string numbers = "adapter product: " + std::to_string(args.T) + " rows of " +
                              std::to_string(args.K) + " to " + std::to_string(args.N) +
                              " by way of " + std::to_string(args.R);
  if (args.T < 0 || args.N <= 0 || args.K <= 0 || args.R < 0 || args.y_stride < args.N)
    return failure(Errc::bad_argument, numbers);
  if (bytes_of(args.dtype) == 1 || bytes_of(args.out_dtype) == 1)
    return failure(Errc::unsupported, numbers + ": eight bits are a type for the cache only");
  if (args.K % kPack != 0)
    return failure(Errc::unsupported, numbers + "; rows must be multiples of 4");
  if (args.T == 0 || args.R == 0) return {};
  const int rows = rows_of_a_block(args.T);
  const auto blocks = [](std::int32_t of, int size) {
    return static_cast<unsigned>((of - 1) / size + 1);
  };
  constexpr unsigned kMostInY = 65535;
  const unsigned down = blocks(args.R, kDownWarps), up = blocks(args.N, kUpThreads);
  if (std::max(down, up) > kMostInY)
    return failure(Errc::unsupported, numbers + ": too many columns in one call");
  return launch(adapter_down, dim3{blocks(args.T, rows), down, 1}, dim3{kDownThreads, 1, 1}, 0,
                stream, args, rows)
      .and_then([&] {
        return launch(adapter_up, dim3{blocks(args.T, rows), up, 1}, dim3{kUpThreads, 1, 1}, 0,
                      stream, args, rows);
      });
}

}  // namespace kvhive
