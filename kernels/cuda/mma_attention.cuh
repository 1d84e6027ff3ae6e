#pragma once
// Attention on tensor cores: the query heads that share a kv head are the 16 rows of the product,
// so that their K and V are read once. One block computes one piece (split_plan.hpp) for up to 16
// heads of one kv head; each of its four warps takes every fourth tile of 16 tokens, counted from
// position 0, and keeps softmax states of its own; they are merged in order at the end.
//
// A warp copies its own tiles, so the main loop has no block barrier. Chunk c of a tile's row r is
// stored at c ^ (r % 8) (of each 8): ldmatrix then reads 8 rows from 8 different banks.

#include "kernels/cuda/attention_state.cuh"
#include "kernels/cuda/launch.cuh"

namespace kvhive::device {

inline constexpr int kMmaWarps = 4;
inline constexpr int kMmaThreads = kMmaWarps * kWarp;
inline constexpr int kMmaRows = 16;    ///< heads
inline constexpr int kMmaTokens = 16;  ///< of a tile

template <int D>
struct MmaShape {
  static constexpr int kStages = D <= 128 ? 3 : 2;
  static constexpr int kStride = (D + 63) / 64 * 64;  ///< elements per row: whole swizzles
  static constexpr int kTile = kMmaTokens * kStride;  ///< elements of one K or V tile
  static constexpr int kChunks = D / 8;               ///< of 16 bytes per row

  static constexpr int shared_bytes() {
    const int loop = kMmaWarps * kStages * 2 * kTile * 2;
    const int merge = kMmaWarps * kMmaRows * (D + 2) * 4;
    return loop > merge ? loop : merge;
  }
  static __device__ __forceinline__ int place(int row, int chunk) {
    return row * kStride + ((chunk & ~7) | ((chunk ^ row) & 7)) * 8;
  }
};

template <Dtype kKv>
__device__ __forceinline__ void multiply_add(float (&d)[4], const std::uint32_t (&a)[4],
                                             const std::uint32_t (&b)[2] KV_ALSO_CALLER) {
  if constexpr (kKv == Dtype::bf16)
    mma_bf16(d, a, b KV_FORWARD_CALLER);
  else
    mma_f16(d, a, b KV_FORWARD_CALLER);
}

/// Grid: (pieces, kv heads times groups of 16 query heads). q is of kKv.
template <Dtype kKv, int D, bool kHasOptions>
__global__ void __launch_bounds__(kMmaThreads)
    mma_attention(const __grid_constant__ PagedAttentionArgs args,
                  const __grid_constant__ AttentionWork work, int block_shift) {
  using Shape = MmaShape<D>;
  using Stored = typename Element<kKv>::Stored;
  const PagedKv& kv = args.kv;
  const AttentionSplit split = work.splits[blockIdx.x];
  const int lane = static_cast<int>(threadIdx.x % kWarp);
  const int warp = static_cast<int>(threadIdx.x / kWarp);
  const int heads_per_kv = args.H / kv.G;
  const int groups = (heads_per_kv + kMmaRows - 1) / kMmaRows;
  const int g = static_cast<int>(blockIdx.y) / groups;
  const int first_row = static_cast<int>(blockIdx.y) % groups * kMmaRows;
  const int first_h = g * heads_per_kv + first_row;
  const int rows = heads_per_kv - first_row < kMmaRows ? heads_per_kv - first_row : kMmaRows;

  // Rows of q are the first operand: register i of lane l holds row l/4 + i%2*8, columns
  // l%4*2 + i/2*8 and the next.
  std::uint32_t q[D / 16][4];
  const auto* q_rows =
      static_cast<const Stored*>(args.q) + (std::int64_t{split.query} * args.H + first_h) * D;
#pragma unroll
  for (int kk = 0; kk < D / 16; ++kk)
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int row = lane / 4 + i % 2 * 8, column = kk * 16 + lane % 4 * 2 + i / 2 * 8;
      q[kk][i] =
          row < rows ? *reinterpret_cast<const std::uint32_t*>(q_rows + row * D + column) : 0;
    }

  // Tiles begin at multiples of 64 tokens, so that a token's tile and warp follow from its
  // position.
  constexpr int kStep = kMmaWarps * kMmaTokens;
  const int first_tile = split.begin / kStep * kStep + warp * kMmaTokens;
  const int iterations = split.end > first_tile ? (split.end - first_tile + kStep - 1) / kStep : 0;
  const std::uint32_t* table = args.block_table + std::int64_t{split.b} * args.M;
  const auto block_of = [&](int iteration) {  // of token lane % 16 of the tile
    const int t = first_tile + iteration * kStep + lane % kMmaTokens;
    return t >= split.begin && t < split.end ? table[t >> block_shift] : 0u;
  };
  auto* tiles =
      reinterpret_cast<Stored*>(shared_memory()) + warp * Shape::kStages * 2 * Shape::kTile;
  const auto copy_tile = [&](int iteration, std::uint32_t block_of_lane) {
    Stored* k_tile = tiles + iteration % Shape::kStages * 2 * Shape::kTile;
    const int begin = first_tile + iteration * kStep;
#pragma unroll
    for (int i = 0; i < kMmaTokens * Shape::kChunks / kWarp; ++i) {
      const int row = (i * kWarp + lane) / Shape::kChunks,
                chunk = (i * kWarp + lane) % Shape::kChunks;
      const int t = begin + row;
      const bool wanted = t >= split.begin && t < split.end;
      const std::uint32_t block = __shfl_sync(kAllLanes, block_of_lane, row);
      const std::int64_t offset = block * kv.block_stride + g * kv.head_stride +
                                  (t & (kv.S - 1)) * kv.token_stride + chunk * 16;
      const int place = Shape::place(row, chunk);
      copy_async<16>(k_tile + place, wanted ? kv.k + offset : kv.k, wanted);
      copy_async<16>(k_tile + Shape::kTile + place, wanted ? kv.v + offset : kv.v, wanted);
    }
  };

  // Of this lane's rows lane/4 and lane/4 + 8.
  float max[2] = {-kInfinity, -kInfinity}, sum[2] = {};
  float acc[D / 8][4] = {};
  const float k_scale = fixed_scale(kv.scales, kv.scales.k, g);
  const float v_scale = fixed_scale(kv.scales, kv.scales.v, g);
  const float factor = args.scale * k_scale * (kHasOptions ? 1.0f : kLog2E);

  std::uint32_t next_block = block_of(0);
#pragma unroll
  for (int i = 0; i < Shape::kStages - 1; ++i) {
    if (i < iterations) {
      copy_tile(i, next_block);
      next_block = block_of(i + 1);
    }
    commit_copies();
  }
  for (int it = 0; it < iterations; ++it) {
    wait_copies<Shape::kStages - 2>();
    __syncwarp();  // the other lanes' copies have landed, and nobody reads the stage before
    const Stored* k_tile = tiles + it % Shape::kStages * 2 * Shape::kTile;
    const Stored* v_tile = k_tile + Shape::kTile;
    float scores[2][4] = {};  // tokens 0..7, 8..15
#pragma unroll
    for (int kk = 0; kk < D / 16; ++kk) {
      std::uint32_t k[4];  // tokens 0..7 (dims low, high), tokens 8..15
      load_matrices(k, k_tile + Shape::place(lane / 16 * 8 + lane % 8, kk * 2 + lane / 8 % 2));
      multiply_add<kKv>(scores[0], q[kk], {k[0], k[1]});
      multiply_add<kKv>(scores[1], q[kk], {k[2], k[3]});
    }
    const int first_t = first_tile + it * kStep + lane % 4 * 2;
    float top[2] = {max[0], max[1]};
#pragma unroll
    for (int n = 0; n < 2; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int t = first_t + n * 8 + i % 2, row = lane / 4 + i / 2 * 8;
        float score = scores[n][i] * factor;
        if constexpr (kHasOptions)
          if (row < rows) score = score_with_options(args, first_h + row, split.position, t, score);
        scores[n][i] = t >= split.begin && t < split.end ? score : -kInfinity;
        top[i / 2] = fmaxf(top[i / 2], scores[n][i]);
      }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      top[half] = fmaxf(top[half], __shfl_xor_sync(kAllLanes, top[half], 1));
      top[half] = fmaxf(top[half], __shfl_xor_sync(kAllLanes, top[half], 2));
      const float base = top[half] > -kInfinity ? top[half] : 0.0f;
      const float shrink = exp2_approximate(max[half] - base);
      max[half] = top[half];
      sum[half] *= shrink;
#pragma unroll
      for (int n = 0; n < D / 8; ++n) {
        acc[n][2 * half] *= shrink;
        acc[n][2 * half + 1] *= shrink;
      }
#pragma unroll
      for (int n = 0; n < 2; ++n)
#pragma unroll
        for (int i = 2 * half; i < 2 * half + 2; ++i) {
          scores[n][i] = exp2_approximate(scores[n][i] - base);
          sum[half] += scores[n][i];
        }
    }
    // What a lane has of the scores is what it needs of the weights as first operand.
    std::uint32_t weights[4];
#pragma unroll
    for (int i = 0; i < 4; ++i)
      weights[i] = pair_of<kKv>(scores[i / 2][i % 2 * 2], scores[i / 2][i % 2 * 2 + 1]);
#pragma unroll
    for (int n = 0; n < D / 16; ++n) {
      std::uint32_t v[4];  // dims 0..7 (tokens low, high), dims 8..15
      load_matrices_transposed(v, v_tile + Shape::place(lane % 16, n * 2 + lane / 16));
      multiply_add<kKv>(acc[2 * n], weights, {v[0], v[1]});
      multiply_add<kKv>(acc[2 * n + 1], weights, {v[2], v[3]});
    }
    // The stage filled now was read an iteration ago: before the barrier above.
    if (it + Shape::kStages - 1 < iterations) {
      copy_tile(it + Shape::kStages - 1, next_block);
      next_block = block_of(it + Shape::kStages);
    }
    commit_copies();
  }
  wait_copies<0>();
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    sum[half] += __shfl_xor_sync(kAllLanes, sum[half], 1);
    sum[half] += __shfl_xor_sync(kAllLanes, sum[half], 2);
  }

  __syncthreads();  // the tiles' memory becomes the states'
  auto* maxima = reinterpret_cast<float*>(shared_memory());  // [warp][row][max, sum]
  float* accs = maxima + kMmaWarps * kMmaRows * 2;           // [warp][row][D]
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int at = warp * kMmaRows + lane / 4 + half * 8;
    if (lane % 4 == 0) {
      maxima[2 * at] = max[half];
      maxima[2 * at + 1] = sum[half];
    }
#pragma unroll
    for (int n = 0; n < D / 8; ++n)
#pragma unroll
      for (int e = 0; e < 2; ++e) accs[at * D + n * 8 + lane % 4 * 2 + e] = acc[n][2 * half + e];
  }
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < rows * D; i += kMmaThreads) {
    const int row = i / D, d = i % D;
    const Merged all = merge_states_at<kMmaWarps>(maxima, accs, row, kMmaRows, D, d);
    write_piece(args, work, split, first_h + row, d, all.max, all.sum, all.acc * v_scale);
  }
}

template <Dtype kKv, int D>
Expected<void> launch_mma(const PagedAttentionArgs& args, const AttentionWork& work,
                          CudaStream stream) {
  const bool has_options = args.soft_cap > 0 || args.alibi_slopes != nullptr;
  const auto kernel = has_options ? mma_attention<kKv, D, true> : mma_attention<kKv, D, false>;
  const int groups = (args.H / args.kv.G + kMmaRows - 1) / kMmaRows;
  const dim3 grid{static_cast<unsigned>(work.splits_count),
                  static_cast<unsigned>(args.kv.G * groups), 1};
  return launch(kernel, grid, dim3{kMmaThreads, 1, 1}, MmaShape<D>::shared_bytes(), stream, args,
                work, __builtin_ctz(static_cast<unsigned>(args.kv.S)));
}

/// D is one of 64, 80, 96, 112, 128, 192, 256; rows are aligned to 16 bytes; no sparsity.
template <Dtype kKv>
Expected<void> mma_attention_of(const PagedAttentionArgs& args, const AttentionWork& work,
                                CudaStream stream) {
  switch (args.kv.D) {
    case 64: return launch_mma<kKv, 64>(args, work, stream);
    case 80: return launch_mma<kKv, 80>(args, work, stream);
    case 96: return launch_mma<kKv, 96>(args, work, stream);
    case 112: return launch_mma<kKv, 112>(args, work, stream);
    case 128: return launch_mma<kKv, 128>(args, work, stream);
    case 192: return launch_mma<kKv, 192>(args, work, stream);
    case 256: return launch_mma<kKv, 256>(args, work, stream);
    default:
      return failure(Errc::unsupported, "paged attention: head size " + std::to_string(args.kv.D) +
                                            " by tensor cores");
  }
}

}  // namespace kvhive::device
