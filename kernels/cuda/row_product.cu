// Two kernels, one for few rows and one for many, that compute an element of y by the same
// additions. K is cut into four ranges whose borders depend on K alone. A range is summed up by the
// tensor core of one warp, sixteen products at a time. The four sums are added in order. With few
// rows (decode), each warp of a block takes one range, so that as many warps as possible read
// weights. With many rows (prefill), every warp goes through the four ranges one after the other.
//
// A third kernel multiplies f32, one addition after the other. Each kernel is compiled twice: for a
// row product and for the product of a mixture of experts, which differ in where a block of threads
// finds its rows (RowTile, ExpertTile).

#include "kernels/row_product.hpp"

#include <algorithm>
#include <string>

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

/// Copies one stage of kRows rows of a matrix whose rows begin `stride` elements apart; zeros
/// beyond K. `row_of(i, row)` is the matrix's row for row `row` of the stage, the i-th that this
/// copier copies of; negative: zeros.
template <int kRows, int kCopiers, class RowOf>
__device__ __forceinline__ void copy_rows(std::byte* stage, const std::byte* matrix, int stride,
                                          int K, int step, int copier, RowOf row_of) {
#pragma unroll
  for (int i = 0; i < kRows * kChunks / kCopiers; ++i) {
    const int row = (i * kCopiers + copier) / kChunks, chunk = (i * kCopiers + copier) % kChunks;
    const int k = step * kStep + chunk * 8;
    const int from = row_of(i, row);
    const bool wanted = from >= 0 && k < K;
    copy_async<16>(stage + place(row, chunk),
                   wanted ? matrix + (std::int64_t{from} * stride + k) * 2 : matrix, wanted);
  }
}

/// The part of y that a block of threads computes, and its operands.
struct Tile {
  const std::byte* x;
  const std::byte* w;
  std::byte* y;
  int first_row, end_row;  ///< of y; the tile may go on beyond the end
  int first_column;
};

/// A tile of a row product: row r of y is made of row r of x. Grid: z counts the products.
struct RowTile : Tile {
  /// \param tile, columns the tile's number among the rows and its first column
  template <int kRows>
  static __device__ __forceinline__ RowTile find(const RowProductArgs& args, int tile,
                                                 int first_column) {
    const std::int64_t b = blockIdx.z;
    const std::int64_t bytes = args.dtype == Dtype::f32 ? 4 : 2;
    const std::int64_t out_bytes = args.out_dtype == Dtype::f32 ? 4 : 2;
    return {{static_cast<const std::byte*>(args.x) + b * args.x_step * bytes,
             static_cast<const std::byte*>(args.w) + b * args.w_step * bytes,
             static_cast<std::byte*>(args.y) + b * args.y_step * out_bytes, tile * kRows, args.T,
             first_column}};
  }
  static __device__ __forceinline__ int x_stride(const RowProductArgs& args) {
    return static_cast<int>(args.x_stride);
  }
  static __device__ __forceinline__ std::int64_t y_stride(const RowProductArgs& args) {
    return args.y_stride;
  }
  static __device__ __forceinline__ const void* bias(const RowProductArgs& args) {
    return args.bias;
  }

  /// Finds the rows of x for copy_rows().
  template <int kRows, int kCopiers>
  struct Rows {
    int first, end;
    __device__ __forceinline__ Rows(const RowProductArgs&, const RowTile& tile, int)
        : first(tile.first_row), end(tile.end_row) {}
    __device__ __forceinline__ int operator()(int, int row) const {
      return first + row < end ? first + row : -1;
    }
  };
  __device__ __forceinline__ int row_of_x(const RowProductArgs&, int row) const { return row; }
};

/// A tile of one expert's product. An expert's rows are consecutive in y; those of x are named by
/// the pairs.
struct ExpertTile : Tile {
  /// Every thread of the block must call it. The grid has as many tiles as there can be; those that
  /// are too many get no rows. The experts' tiles are numbered one expert after the other. How many
  /// each has is known on the device alone, so every block counts them.
  template <int kRows>
  static __device__ __forceinline__ ExpertTile find(const ExpertProductArgs& args, int tile,
                                                    int first_column) {
    const int thread = static_cast<int>(threadIdx.x), lane = thread % kWarp, warp = thread / kWarp;
    const int threads = static_cast<int>(blockDim.x);
    auto* const found =
        reinterpret_cast<int*>(shared_memory());  // first and end of the rows, expert
    int* const of_warps = found + 3;
    const int per_thread = (args.E + threads - 1) / threads;
    const int first = thread * per_thread;
    const int end = first + per_thread < args.E ? first + per_thread : args.E;
    int tiles = 0;
    for (int e = first; e < end; ++e)
      tiles += (args.first[e + 1] - args.first[e] + kRows - 1) / kRows;
    int before = tiles;  // for now, in this warp and with this thread's
#pragma unroll
    for (int distance = 1; distance < kWarp; distance *= 2) {
      const int other = __shfl_up_sync(kAllLanes, before, distance);
      if (lane >= distance) before += other;
    }
    if (lane == kWarp - 1) of_warps[warp] = before;
    if (thread == 0) found[0] = found[1] = found[2] = 0;
    __syncthreads();
    before -= tiles;
    for (int i = 0; i < warp; ++i) before += of_warps[i];
    if (before <= tile && tile < before + tiles)
      for (int e = first; e < end; ++e) {
        const int row = args.first[e] + (tile - before) * kRows;
        before += (args.first[e + 1] - args.first[e] + kRows - 1) / kRows;
        if (tile >= before) continue;
        found[0] = row;
        found[1] = args.first[e + 1];
        found[2] = e;
        break;
      }
    __syncthreads();
    const int first_row = found[0], end_row = found[1], expert = found[2];
    __syncthreads();  // from here on the memory is the stages'
    const std::int64_t bytes = args.dtype == Dtype::f32 ? 4 : 2;
    return {{static_cast<const std::byte*>(args.x),
             static_cast<const std::byte*>(args.w) + expert * args.w_step * bytes,
             static_cast<std::byte*>(args.y), first_row, end_row, first_column}};
  }
  static __device__ __forceinline__ int x_stride(const ExpertProductArgs& args) { return args.K; }
  static __device__ __forceinline__ std::int64_t y_stride(const ExpertProductArgs& args) {
    return args.N;
  }
  static __device__ __forceinline__ const void* bias(const ExpertProductArgs&) { return nullptr; }

  /// Kept in registers, so that no step waits for the pairs.
  template <int kRows, int kCopiers>
  struct Rows {
    static constexpr int kCount = kRows * kChunks / kCopiers;
    int rows[kCount];
    __device__ __forceinline__ Rows(const ExpertProductArgs& args, const ExpertTile& tile,
                                    int copier) {
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        const int row = tile.first_row + (i * kCopiers + copier) / kChunks;
        rows[i] = row < tile.end_row ? tile.row_of_x(args, row) : -1;
      }
    }
    __device__ __forceinline__ int operator()(int i, int) const { return rows[i]; }
  };
  __device__ __forceinline__ int row_of_x(const ExpertProductArgs& args, int row) const {
    return args.pairs == nullptr ? row : args.pairs[row] / args.k;
  }
};

/// The rows of w are the columns of y, one after the other.
struct WeightRows {
  int first, end;
  __device__ __forceinline__ int operator()(int, int row) const {
    return first + row < end ? first + row : -1;
  }
};

template <class Args>
struct TileFor;
template <>
struct TileFor<RowProductArgs> {
  using Type = RowTile;
};
template <>
struct TileFor<ExpertProductArgs> {
  using Type = ExpertTile;
};

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

template <class Args, class Of>
__device__ __forceinline__ void write(const Args& args, const Of& tile, int row, int column,
                                      float sum) {
  if (row >= tile.end_row || column >= args.N) return;
  if (Of::bias(args) != nullptr) sum += load_value(Of::bias(args), column, args.out_dtype);
  store_value(tile.y, row * Of::y_stride(args) + column, args.out_dtype, sum);
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
template <Dtype kType, class Args>
__global__ void __launch_bounds__(kThreads) narrow_product(const __grid_constant__ Args args) {
  using Of = typename TileFor<Args>::Type;
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % kWarp, range = thread / kWarp;
  const Of tile = Of::template find<Narrow::kRows>(args, static_cast<int>(blockIdx.y),
                                                   static_cast<int>(blockIdx.x) * Narrow::kColumns);
  if (tile.first_row >= tile.end_row) return;
  const int steps = (args.K + kStep - 1) / kStep;
  const int first = steps * range / kRanges, last = steps * (range + 1) / kRanges;
  std::byte* const stages = shared_memory() + range * Narrow::kWarpBytes;
  const typename Of::template Rows<Narrow::kRows, kWarp> x_rows(args, tile, lane);
  const auto copy = [&](int step) {
    std::byte* stage = stages + step % Narrow::kStages * Narrow::kStage;
    copy_rows<Narrow::kRows, kWarp>(stage, tile.x, Of::x_stride(args), args.K, step, lane, x_rows);
    copy_rows<Narrow::kColumns, kWarp>(stage + Narrow::kXBytes, tile.w, args.K, args.K, step, lane,
                                       WeightRows{tile.first_column, args.N});
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
    write(args, tile, tile.first_row + i / Narrow::kColumns,
          tile.first_column + i % Narrow::kColumns, sum);
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
template <Dtype kType, class Args>
__global__ void __launch_bounds__(kThreads) wide_product(const __grid_constant__ Args args) {
  using Of = typename TileFor<Args>::Type;
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % kWarp, warp = thread / kWarp;
  const Of tile = Of::template find<Wide::kRows>(args, static_cast<int>(blockIdx.x),
                                                 static_cast<int>(blockIdx.y) * Wide::kColumns);
  if (tile.first_row >= tile.end_row) return;
  const int row_of_warp = warp / 2 * Wide::kOfWarp, column_of_warp = warp % 2 * Wide::kOfWarp;
  const int steps = (args.K + kStep - 1) / kStep;
  std::byte* const stages = shared_memory();
  const typename Of::template Rows<Wide::kRows, kThreads> x_rows(args, tile, thread);
  const auto copy = [&](int step) {
    std::byte* stage = stages + step % Wide::kStages * Wide::kStage;
    copy_rows<Wide::kRows, kThreads>(stage, tile.x, Of::x_stride(args), args.K, step, thread,
                                     x_rows);
    copy_rows<Wide::kColumns, kThreads>(stage + Wide::kXBytes, tile.w, args.K, args.K, step, thread,
                                        WeightRows{tile.first_column, args.N});
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
        write(args, tile, tile.first_row + row_of_warp + m * 16 + lane / 4 + e / 2 * 8,
              tile.first_column + column_of_warp + n * 8 + lane % 4 * 2 + e % 2, totals[m][n][e]);
}

struct Plain {
  static constexpr int kRows = 16, kColumns = 16;
  static constexpr int kThreads = kRows * kColumns;
  static constexpr int kOfK = 16;          ///< elements of K in a stage
  static constexpr int kPitch = kOfK + 1;  ///< so that a column's elements are in different banks
  static constexpr int kSharedBytes = (kRows + kColumns) * kPitch * 4;
};

/// f32: one element of y per thread, added in the order of K. Grid: (T / kRows, N / kColumns).
template <class Args>
__global__ void __launch_bounds__(Plain::kThreads)
    plain_product(const __grid_constant__ Args args) {
  using Of = typename TileFor<Args>::Type;
  const int row = static_cast<int>(threadIdx.x) / Plain::kColumns;
  const int column = static_cast<int>(threadIdx.x) % Plain::kColumns;
  const Of tile = Of::template find<Plain::kRows>(args, static_cast<int>(blockIdx.x),
                                                  static_cast<int>(blockIdx.y) * Plain::kColumns);
  if (tile.first_row >= tile.end_row) return;
  auto* const x = reinterpret_cast<float*>(shared_memory());
  float* const w = x + Plain::kRows * Plain::kPitch;
  // This thread copies element `column` of each stage of one row of x and one row of w.
  const bool has_x = tile.first_row + row < tile.end_row;
  const bool has_w = tile.first_column + row < args.N;
  const auto* from_x = reinterpret_cast<const float*>(tile.x);
  if (has_x) from_x += std::int64_t{tile.row_of_x(args, tile.first_row + row)} * Of::x_stride(args);
  const auto* from_w = reinterpret_cast<const float*>(tile.w);
  if (has_w) from_w += std::int64_t{tile.first_column + row} * args.K;
  float sum = 0;
  for (int first = 0; first < args.K; first += Plain::kOfK) {
    const int k = first + column;
    x[row * Plain::kPitch + column] = has_x && k < args.K ? from_x[k] : 0.0f;
    w[row * Plain::kPitch + column] = has_w && k < args.K ? from_w[k] : 0.0f;
    __syncthreads();
#pragma unroll
    for (int i = 0; i < Plain::kOfK; ++i)
      sum = fmaf(x[row * Plain::kPitch + i], w[column * Plain::kPitch + i], sum);
    __syncthreads();
  }
  write(args, tile, tile.first_row + row, tile.first_column + column, sum);
}

unsigned tiles(int count, int size) { return static_cast<unsigned>((count - 1) / size + 1); }

/// Chosen without measurement: from more rows than this on, a wide tile is at least half full.
constexpr int kMostNarrowRows = 2 * Narrow::kRows;

/// \param row_tiles says how many tiles there are of so many rows
/// \param rows of one product, on average
template <class Args, class RowTiles>
Expected<void> launch_product(const Args& args, int rows, RowTiles row_tiles, int products,
                              CudaStream stream) {
  const auto z = static_cast<unsigned>(products);
  if (args.dtype == Dtype::f32)
    return launch(plain_product<Args>,
                  dim3{row_tiles(Plain::kRows), tiles(args.N, Plain::kColumns), z},
                  dim3{Plain::kThreads, 1, 1}, Plain::kSharedBytes, stream, args);
  const bool is_bf16 = args.dtype == Dtype::bf16;
  if (rows <= kMostNarrowRows)
    return launch(is_bf16 ? narrow_product<Dtype::bf16, Args> : narrow_product<Dtype::f16, Args>,
                  dim3{tiles(args.N, Narrow::kColumns), row_tiles(Narrow::kRows), z},
                  dim3{kThreads, 1, 1}, Narrow::kSharedBytes, stream, args);
  return launch(is_bf16 ? wide_product<Dtype::bf16, Args> : wide_product<Dtype::f16, Args>,
                dim3{row_tiles(Wide::kRows), tiles(args.N, Wide::kColumns), z},
                dim3{kThreads, 1, 1}, Wide::kSharedBytes, stream, args);
}

/// What both products need. \param x_stride, steps elements between rows and between matrices
Expected<void> check_product(const std::string& name, Dtype dtype, Dtype out_dtype, const void* x,
                             const void* w, int rows, int N, int K, std::int64_t x_stride,
                             std::int64_t x_step, std::int64_t w_step) {
  for (const Dtype type : {dtype, out_dtype})
    if (type != Dtype::bf16 && type != Dtype::f16 && type != Dtype::f32)
      return failure(Errc::unsupported, name + ": of " + std::string(to_string(type)) +
                                            "; it must be bfloat16, float16 or float32");
  const auto addresses = reinterpret_cast<std::uintptr_t>(x) | reinterpret_cast<std::uintptr_t>(w);
  const bool is_plain = dtype == Dtype::f32;
  const int elements = is_plain ? 1 : 8;
  if (K <= 0 || K % elements != 0 || addresses % (is_plain ? 4 : 16) != 0)
    return failure(Errc::unsupported,
                   name + ": rows of " + std::to_string(K) +
                       (is_plain ? " elements; they must be aligned to 4 bytes"
                                 : " elements; they must be multiples of 8, aligned to 16 bytes"));
  if (x_stride < K || x_stride > 0x7fffffff || x_step < 0 || w_step < 0 ||
      (x_stride | x_step | w_step) % elements != 0)
    return failure(Errc::unsupported, name + ": rows of " + std::to_string(K) +
                                          " elements, x_stride " + std::to_string(x_stride) +
                                          ", x_step " + std::to_string(x_step) + ", w_step " +
                                          std::to_string(w_step) + "; they must be multiples of " +
                                          std::to_string(elements) + ", the stride at least a row");
  const int most = 65535 * (is_plain ? Plain::kColumns : Wide::kColumns);
  if (N <= 0 || N > most || rows < 0)
    return failure(Errc::unsupported, name + ": " + std::to_string(rows) + " rows of " +
                                          std::to_string(N) + "; 1.." + std::to_string(most) +
                                          " columns are supported");
  return {};
}

}  // namespace

Expected<void> row_product_cuda(const RowProductArgs& given, CudaStream stream) {
  RowProductArgs args = given;
  if (args.x_stride == 0) args.x_stride = args.K;
  if (args.y_stride == 0) args.y_stride = args.N;
  if (auto ok = check_product("row product", args.dtype, args.out_dtype, args.x, args.w, args.T,
                              args.N, args.K, args.x_stride, args.x_step, args.w_step);
      !ok)
    return ok;
  constexpr std::int32_t kMostProducts = 65535;
  if (args.batch < 0 || args.batch > kMostProducts || (args.batch > 1 && args.bias != nullptr))
    return failure(Errc::unsupported, "row product: " + std::to_string(args.batch) +
                                          " products; 1.." + std::to_string(kMostProducts) +
                                          " are supported, and a bias with 1 only");
  if (args.y_stride < args.N || (args.batch > 1 && args.y_step <= 0))
    return failure(Errc::unsupported, "row product: y has y_stride " +
                                          std::to_string(args.y_stride) + ", y_step " +
                                          std::to_string(args.y_step) + " and rows of " +
                                          std::to_string(args.N) + ", which would overlap");
  if (args.T == 0 || args.batch == 0) return {};
  return launch_product(
      args, args.T, [&](int size) { return tiles(args.T, size); }, args.batch, stream);
}

Expected<void> expert_product_cuda(const ExpertProductArgs& given, CudaStream stream) {
  ExpertProductArgs args = given;
  if (args.w_step == 0) args.w_step = std::int64_t{args.N} * args.K;
  if (auto ok = check_product("expert product", args.dtype, args.out_dtype, args.x, args.w,
                              args.rows, args.N, args.K, args.K, 0, args.w_step);
      !ok)
    return ok;
  if (args.E <= 0 || args.E > kMostExperts || args.k <= 0)
    return failure(Errc::unsupported, "expert product: " + std::to_string(args.E) + " experts, " +
                                          std::to_string(args.k) + " of a token; 1.." +
                                          std::to_string(kMostExperts) + " are supported");
  if (args.rows == 0) return {};
  // An expert's last tile may be partly full, so there may be one more for each expert with rows.
  const int experts = std::min(args.E, args.rows);
  return launch_product(
      args, args.rows / experts,
      [&](int size) { return static_cast<unsigned>(args.rows / size + experts); }, 1, stream);
}

}  // namespace kvhive
