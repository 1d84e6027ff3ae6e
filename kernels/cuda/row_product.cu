// Two kernels, one for few rows and one for many, that compute an element of y by the same
// additions. K is cut into four ranges whose borders depend on K alone. A range is summed up by the
// tensor core of one warp, sixteen products at a time. The four sums are added in order. With few
// rows (decode), each warp of a block takes one range, so that as many warps as possible read
// weights. With many rows (prefill), every warp goes through the four ranges one after the other.

#include "kernels/row_product.hpp"

#include "kernels/cuda/element.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/mma_operands.cuh"

namespace kvhive {
namespace {

using namespace device;

constexpr int kStep = 64;  ///< elements of K in a stage
constexpr int kChunks = kStep / 8;
constexpr int kRowBytes = kStep * 2;
constexpr int kRanges = 4;
constexpr int kThreads = kRanges * kWarp;

/// The step at which the range of K that contains `step` ends.
__device__ __forceinline__ int range_end(int step, int steps) {
  int border = 0;
  for (int range = 1; border <= step; ++range) border = steps * range / kRanges;
  return border;
}

/// Swizzled as in MmaTile: 8 consecutive rows of a matrix lie in different banks.
__device__ __forceinline__ int place(int row, int chunk) {
  return row * kRowBytes + (chunk ^ row % 8) * 16;
}

/// Copies one stage of kRows rows of a matrix [rows, K], from row `first` on; zeros outside the
/// matrix.
template <int kRows, int kCopiers>
__device__ __forceinline__ void copy_rows(std::byte* stage, const void* matrix, int first, int rows,
                                          int K, int step, int copier) {
  const auto* from = static_cast<const std::byte*>(matrix);
#pragma unroll
  for (int i = 0; i < kRows * kChunks / kCopiers; ++i) {
    const int row = (i * kCopiers + copier) / kChunks, chunk = (i * kCopiers + copier) % kChunks;
    const int k = step * kStep + chunk * 8;
    const bool wanted = first + row < rows && k < K;
    copy_async<16>(stage + place(row, chunk),
                   wanted ? from + (std::int64_t{first + row} * K + k) * 2 : from, wanted);
  }
}

/// Multiplies 16 * kM rows of x with 16 * kN rows of w over one stage and adds to sums. Element e
/// of sums[m][n] is row lane/4 + e/2*8, column lane%4*2 + e%2 of its tile of 16 x 8.
template <Dtype kType, int kM, int kN>
__device__ __forceinline__ void add_stage(float (&sums)[kM][2 * kN][4], const std::byte* x,
                                          int first_x, const std::byte* w, int first_w, int lane) {
#pragma unroll
  for (int kk = 0; kk < kStep / 16; ++kk) {
    std::uint32_t rows[kM][4];
#pragma unroll
    for (int m = 0; m < kM; ++m)
      load_matrices(rows[m], x + place(first_x + m * 16 + lane % 16, kk * 2 + lane / 16));
#pragma unroll
    for (int n = 0; n < kN; ++n) {
      std::uint32_t columns[4];  // 0..7 (K low, high), 8..15
      load_matrices(columns,
                    w + place(first_w + n * 16 + lane / 16 * 8 + lane % 8, kk * 2 + lane / 8 % 2));
#pragma unroll
      for (int m = 0; m < kM; ++m) {
        multiply_add<kType>(sums[m][2 * n], rows[m], {columns[0], columns[1]});
        multiply_add<kType>(sums[m][2 * n + 1], rows[m], {columns[2], columns[3]});
      }
    }
  }
}

__device__ __forceinline__ void write(const RowProductArgs& args, int row, int column, float sum) {
  if (row >= args.T || column >= args.N) return;
  if (args.bias != nullptr) sum += load_value(args.bias, column, args.out_dtype);
  store_value(args.y, std::int64_t{row} * args.N + column, args.out_dtype, sum);
}

struct Narrow {
  static constexpr int kRows = 16, kColumns = 32, kStages = 4;
  static constexpr int kXBytes = kRows * kRowBytes;
  static constexpr int kStage = kXBytes + kColumns * kRowBytes;
  static constexpr int kWarpBytes = kStages * kStage;
  static constexpr int kSharedBytes = kRanges * kWarpBytes;
  static_assert(kRanges * kRows * kColumns * 4 <= kSharedBytes);
};

/// One warp per range of K. Grid: (N / kColumns, T / kRows).
template <Dtype kType>
__global__ void __launch_bounds__(kThreads)
    narrow_product(const __grid_constant__ RowProductArgs args) {
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % kWarp, range = thread / kWarp;
  const int first_row = static_cast<int>(blockIdx.y) * Narrow::kRows;
  const int first_column = static_cast<int>(blockIdx.x) * Narrow::kColumns;
  const int steps = (args.K + kStep - 1) / kStep;
  const int first = steps * range / kRanges, last = steps * (range + 1) / kRanges;
  std::byte* const stages = shared_memory() + range * Narrow::kWarpBytes;
  const auto copy = [&](int step) {
    std::byte* stage = stages + step % Narrow::kStages * Narrow::kStage;
    copy_rows<Narrow::kRows, kWarp>(stage, args.x, first_row, args.T, args.K, step, lane);
    copy_rows<Narrow::kColumns, kWarp>(stage + Narrow::kXBytes, args.w, first_column, args.N,
                                       args.K, step, lane);
  };
  float sums[1][Narrow::kColumns / 8][4] = {};
#pragma unroll
  for (int i = 0; i < Narrow::kStages - 1; ++i) {
    if (first + i < last) copy(first + i);
    commit_copies();
  }
  for (int step = first; step < last; ++step) {
    wait_copies<Narrow::kStages - 2>();
    __syncwarp();  // the other lanes' copies have landed, and no lane reads the previous stage
    const std::byte* stage = stages + step % Narrow::kStages * Narrow::kStage;
    add_stage<kType, 1, Narrow::kColumns / 16>(sums, stage, 0, stage + Narrow::kXBytes, 0, lane);
    if (step + Narrow::kStages - 1 < last) copy(step + Narrow::kStages - 1);
    commit_copies();
  }
  wait_copies<0>();

  __syncthreads();  // from here on the stages' memory holds the ranges' sums: [range][row][column]
  auto* const all = reinterpret_cast<float*>(shared_memory());
  constexpr int kSums = Narrow::kRows * Narrow::kColumns;
#pragma unroll
  for (int n = 0; n < Narrow::kColumns / 8; ++n)
#pragma unroll
    for (int e = 0; e < 4; ++e)
      all[range * kSums + (lane / 4 + e / 2 * 8) * Narrow::kColumns + n * 8 + lane % 4 * 2 +
          e % 2] = sums[0][n][e];
  __syncthreads();
#pragma unroll
  for (int i = thread; i < kSums; i += kThreads) {
    float sum = 0;
#pragma unroll
    for (int of = 0; of < kRanges; ++of) sum += all[of * kSums + i];
    write(args, first_row + i / Narrow::kColumns, first_column + i % Narrow::kColumns, sum);
  }
}

struct Wide {
  static constexpr int kRows = 64, kColumns = 64, kStages = 3;
  static constexpr int kXBytes = kRows * kRowBytes;
  static constexpr int kStage = kXBytes + kColumns * kRowBytes;
  static constexpr int kSharedBytes = kStages * kStage;
  static constexpr int kOfWarp = 32;  ///< rows and columns of one warp
};

/// Grid: (T / kRows, N / kColumns), so that blocks that run at the same time read the same weights.
template <Dtype kType>
__global__ void __launch_bounds__(kThreads)
    wide_product(const __grid_constant__ RowProductArgs args) {
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % kWarp, warp = thread / kWarp;
  const int first_row = static_cast<int>(blockIdx.x) * Wide::kRows;
  const int first_column = static_cast<int>(blockIdx.y) * Wide::kColumns;
  const int row_of_warp = warp / 2 * Wide::kOfWarp, column_of_warp = warp % 2 * Wide::kOfWarp;
  const int steps = (args.K + kStep - 1) / kStep;
  std::byte* const stages = shared_memory();
  const auto copy = [&](int step) {
    std::byte* stage = stages + step % Wide::kStages * Wide::kStage;
    copy_rows<Wide::kRows, kThreads>(stage, args.x, first_row, args.T, args.K, step, thread);
    copy_rows<Wide::kColumns, kThreads>(stage + Wide::kXBytes, args.w, first_column, args.N, args.K,
                                        step, thread);
  };
  constexpr int kM = Wide::kOfWarp / 16, kN = Wide::kOfWarp / 8;
  float sums[kM][kN][4] = {}, totals[kM][kN][4] = {};
#pragma unroll
  for (int i = 0; i < Wide::kStages - 1; ++i) {
    if (i < steps) copy(i);
    commit_copies();
  }
  int border = range_end(0, steps);
  for (int step = 0; step < steps; ++step) {
    wait_copies<Wide::kStages - 2>();
    __syncthreads();  // the other warps' copies have landed, and no warp reads the previous stage
    const std::byte* stage = stages + step % Wide::kStages * Wide::kStage;
    add_stage<kType, kM, kN / 2>(sums, stage, row_of_warp, stage + Wide::kXBytes, column_of_warp,
                                 lane);
    if (step + Wide::kStages - 1 < steps) copy(step + Wide::kStages - 1);
    commit_copies();
    if (step + 1 != border) continue;
    border = step + 1 < steps ? range_end(step + 1, steps) : 0;
#pragma unroll
    for (int m = 0; m < kM; ++m)
#pragma unroll
      for (int n = 0; n < kN; ++n)
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          totals[m][n][e] += sums[m][n][e];
          sums[m][n][e] = 0;
        }
  }
  wait_copies<0>();
#pragma unroll
  for (int m = 0; m < kM; ++m)
#pragma unroll
    for (int n = 0; n < kN; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e)
        write(args, first_row + row_of_warp + m * 16 + lane / 4 + e / 2 * 8,
              first_column + column_of_warp + n * 8 + lane % 4 * 2 + e % 2, totals[m][n][e]);
}

template <Dtype kType>
Expected<void> launch_product(const RowProductArgs& args, CudaStream stream) {
  const auto tiles = [](int count, int size) {
    return static_cast<unsigned>((count + size - 1) / size);
  };
  // Chosen without measurement: from more rows than this on, a wide tile is at least half full.
  constexpr int kMostNarrowRows = 2 * Narrow::kRows;
  if (args.T <= kMostNarrowRows)
    return launch(narrow_product<kType>,
                  dim3{tiles(args.N, Narrow::kColumns), tiles(args.T, Narrow::kRows), 1},
                  dim3{kThreads, 1, 1}, Narrow::kSharedBytes, stream, args);
  return launch(wide_product<kType>,
                dim3{tiles(args.T, Wide::kRows), tiles(args.N, Wide::kColumns), 1},
                dim3{kThreads, 1, 1}, Wide::kSharedBytes, stream, args);
}

}  // namespace

Expected<void> row_product_cuda(const RowProductArgs& args, CudaStream stream) {
  if (args.dtype != Dtype::bf16 && args.dtype != Dtype::f16)
    return failure(Errc::unsupported, "row product: of " + std::string(to_string(args.dtype)) +
                                          "; it must be bfloat16 or float16");
  const auto addresses =
      reinterpret_cast<std::uintptr_t>(args.x) | reinterpret_cast<std::uintptr_t>(args.w);
  if (args.K <= 0 || args.K % 8 != 0 || addresses % 16 != 0)
    return failure(Errc::unsupported,
                   "row product: rows of " + std::to_string(args.K) +
                       " elements; they must be multiples of 8, aligned to 16 bytes");
  constexpr int kMost = 65535 * Wide::kColumns;
  if (args.N <= 0 || args.N > kMost || args.T < 0)
    return failure(Errc::unsupported, "row product: " + std::to_string(args.T) + " rows of " +
                                          std::to_string(args.N) + "; 1.." + std::to_string(kMost) +
                                          " columns are supported");
  if (args.T == 0) return {};
  return args.dtype == Dtype::bf16 ? launch_product<Dtype::bf16>(args, stream)
                                   : launch_product<Dtype::f16>(args, stream);
}

}  // namespace kvhive
