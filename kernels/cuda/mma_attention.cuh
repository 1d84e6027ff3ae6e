#pragma once
// Attention on tensor cores: decode, prefill and cascade. A tile (split_plan.hpp) is one pass over
// some KV, for up to 16 rows with one warp (narrow) or up to 64 rows with four warps (wide). A row
// is one query token with one head. Each row has a softmax state of its own, which goes through the
// KV in order, in steps of 16 tokens that begin at multiples of 16. Tiles and warps do not change
// these steps, and a step that a row does not see leaves its state unchanged. At a border of
// pieces, the piece's state is folded into that of the run.
//
// Source: FlashAttention-2 (Dao, 2023): rows spread over warps, one pass, lazy rescaling.
// FlashInfer (Ye et al., 2024): heads and queries as rows, paged cp.async.

#include "kernels/cuda/attention_by_dtype.hpp"
#include "kernels/cuda/attention_state.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/mma_operands.cuh"
#include "kernels/cuda/mma_states.cuh"

namespace kvhive::device {

template <Dtype kKv, int D, int kWarps>
struct MmaShape {
  using Tile = MmaTile<kKv, D>;
  static constexpr int kThreads = kWarps * kWarp;
  static constexpr int kRows = kWarps * kMmaRows;
  static constexpr int kBlocks = D <= 128 ? 8 / kWarps : 1;  ///< blocks that fit on an SM
  static constexpr bool kIsWideRow = Tile::kRowBytes > 256;
  // Tokens of a stage, which is filled at once. More of them if the block's warps wait for each
  // other.
  static constexpr int kTokens = kWarps > 1 && !kIsWideRow ? 2 * kMmaTokens : kMmaTokens;
  static constexpr int kStages = kIsWideRow ? 2 : 3;
  static constexpr int kPlane = kTokens * Tile::kRowBytes;  ///< bytes of K (or V) of a stage
  static constexpr bool kHasTokenScales = bytes_of(kKv) == 1;
  static constexpr int kScales = kHasTokenScales ? 2 * kTokens * 4 : 0;  ///< of K, then of V
  static constexpr int kStage = 2 * kPlane + kScales;
  static constexpr int kTotals = D / 8 * kWarp * 16;  ///< bytes of one warp
  static constexpr int kTotalsAt = kStages * kStage;
  static constexpr int kQueriesAt = kTotalsAt + kWarps * kTotals;
  static constexpr int kQueries = MmaQueries<D>::kSharedBytes;
  static constexpr int kSharedBytes = kQueriesAt + kWarps * kQueries;
};

/// One lane's two rows, lane/4 and lane/4 + 8. A row that does not exist sees the whole tile, with
/// q of zeros.
struct MmaRowPair {
  int split[2];  ///< -1: the row does not exist
  int h[2];
  int begin[2], end[2];

  __device__ __forceinline__ MmaRowPair(const AttentionWork& work, const AttentionTile& tile,
                                        int first_row, int heads, int first_h, int lane) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = first_row + lane / 4 + half * 8;
      const bool exists = row < tile.splits * heads;
      split[half] = exists ? tile.first_split + row / heads : -1;
      h[half] = first_h + (exists ? row % heads : 0);
      begin[half] = exists ? work.splits[split[half]].begin : tile.begin;
      end[half] = exists ? work.splits[split[half]].end : tile.end;
    }
  }
};

template <bool kIsMax>
__device__ __forceinline__ int warp_extreme(int x) {
#pragma unroll
  for (int distance = kWarp / 2; distance > 0; distance /= 2) {
    const int other = __shfl_xor_sync(kAllLanes, x, distance);
    x = (other > x) == kIsMax ? other : x;
  }
  return x;
}

/// The states of a run up to the last border of pieces. A lane keeps its part of acc in shared
/// memory that no other lane uses.
template <int D>
struct MmaTotals {
  float4* acc;  ///< [D / 8] of this lane, kWarp elements apart
  float max[2] = {-kInfinity, -kInfinity};
  float sum[2] = {};
  bool has_any = false;

  /// Takes over the state of the run's first piece and leaves an empty state in `piece`.
  __device__ __forceinline__ void take(MmaStates<D>& piece) {
    fold(piece);
#pragma unroll
    for (int n = 0; n < D / 8; ++n) {
      acc[n * kWarp] =
          make_float4(piece.acc[n][0], piece.acc[n][1], piece.acc[n][2], piece.acc[n][3]);
#pragma unroll
      for (int e = 0; e < 4; ++e) piece.acc[n][e] = 0;
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      max[half] = piece.max[half];
      sum[half] = piece.sum[half];
      piece.max[half] = -kInfinity;
      piece.sum[half] = 0;
    }
    has_any = true;
  }

  /// Folds the run's state in front of `piece`.
  __device__ __forceinline__ void fold(MmaStates<D>& piece) const {
    piece.gather_sums();
    if (!has_any) return;
    const Fold folds[2] = {{max[0], piece.max[0]}, {max[1], piece.max[1]}};
#pragma unroll
    for (int n = 0; n < D / 8; ++n) {
      const float4 total = acc[n * kWarp];
      piece.acc[n][0] = folds[0](total.x, piece.acc[n][0]);
      piece.acc[n][1] = folds[0](total.y, piece.acc[n][1]);
      piece.acc[n][2] = folds[1](total.z, piece.acc[n][2]);
      piece.acc[n][3] = folds[1](total.w, piece.acc[n][3]);
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      piece.sum[half] = folds[half](sum[half], piece.sum[half]);
      piece.max[half] = folds[half].max;
    }
  }
};

/// Grid: tiles times kv heads times groups of kRows heads. All heads of a tile follow each other,
/// so that the longest tiles, which are the first, all start first, and neighbours read the same
/// blocks.
template <Dtype kKv, int D, int kWarps>
__global__ void __launch_bounds__(kWarps* kWarp, MmaShape<kKv, D, kWarps>::kBlocks)
    mma_attention(const __grid_constant__ PagedAttentionArgs args,
                  const __grid_constant__ AttentionWork work, int first_tile, int block_shift) {
  using Shape = MmaShape<kKv, D, kWarps>;
  using Tile = MmaTile<kKv, D>;
  using Operands = MmaOperands<kKv, D>;
  const PagedKv& kv = args.kv;
  const int heads = args.H / kv.G;
  const int groups = (heads + Shape::kRows - 1) /
                     Shape::kRows;  // more than one only if the tile has one query token
  const int blocks_of_tile = kv.G * groups;
  const int tile_index = static_cast<int>(blockIdx.x) / blocks_of_tile;
  const int block_of_tile = static_cast<int>(blockIdx.x) - tile_index * blocks_of_tile;
  const AttentionTile tile = work.tiles[first_tile + tile_index];
  if (tile.splits == 0) return;
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % kWarp, warp = thread / kWarp;
  const int g = block_of_tile / groups;
  const int first_row = block_of_tile % groups * Shape::kRows + warp * kMmaRows;
  const MmaRowPair rows(work, tile, first_row, heads, g * heads, lane);

  // The steps that some row of the warp sees, and those that all of its rows see whole.
  const bool has_row[2] = {rows.split[0] >= 0, rows.split[1] >= 0};
  const int seen_begin = warp_extreme<false>(
      min(has_row[0] ? rows.begin[0] : tile.end, has_row[1] ? rows.begin[1] : tile.end));
  const int seen_end =
      warp_extreme<true>(max(has_row[0] ? rows.end[0] : 0, has_row[1] ? rows.end[1] : 0));
  const int whole_begin = warp_extreme<true>(max(rows.begin[0], rows.begin[1]));
  const int whole_end = warp_extreme<false>(min(rows.end[0], rows.end[1]));

  std::byte* const shared = shared_memory();
  MmaQueries<D> q(shared + Shape::kQueriesAt + warp * Shape::kQueries, lane);
  float factors[2];
  {
    const void* q_rows[2] = {};
#pragma unroll
    for (int half = 0; half < 2; ++half)
      if (has_row[half])
        q_rows[half] =
            static_cast<const std::uint16_t*>(args.q) +
            (std::int64_t{work.splits[rows.split[half]].query} * args.H + rows.h[half]) * D;
    Operands::load_q(q_rows, lane, args.q_dtype, q, factors);
  }
  const bool has_soft_cap = args.soft_cap > 0;
  const float factor =
      args.scale * fixed_scale(kv.scales, kv.scales.k, g) * (has_soft_cap ? 1.0f : kLog2E);
  factors[0] *= factor;
  factors[1] *= factor;

  const bool has_token_scales = Shape::kHasTokenScales && kv.scales.are_per_token();

  // Stages begin at multiples of 16 tokens, so that positions decide which step a token is in.
  const int first = tile.begin / kMmaTokens * kMmaTokens;
  const int iterations = (tile.end - first + Shape::kTokens - 1) / Shape::kTokens;
  const BlockId* table = args.block_table + std::int64_t{work.splits[tile.first_split].b} * args.M;
  const auto is_wanted = [&](int t) { return t >= tile.begin && t < tile.end; };
  const auto block_of = [&](int iteration) {  // of token lane % kTokens of the stage
    const int t = first + iteration * Shape::kTokens + lane % Shape::kTokens;
    return is_wanted(t) ? table[t >> block_shift].value : 0u;
  };
  const auto copy_stage = [&](int iteration, std::uint32_t block_of_lane) {
    std::byte* keys = shared + iteration % Shape::kStages * Shape::kStage;
    const int begin = first + iteration * Shape::kTokens;
    constexpr int kCopies = Shape::kTokens * Tile::kChunks;
    // Mostly all of a stage is wanted, and blocks hold whole steps: then a lane's copies of a step
    // are the same distance apart.
    constexpr int kRowsAtOnce = Shape::kThreads / Tile::kChunks;
    constexpr bool kIsRegular = Shape::kThreads % Tile::kChunks == 0 &&
                                kMmaTokens % (kRowsAtOnce > 0 ? kRowsAtOnce : 1) == 0;
    if (kIsRegular && kv.S >= kMmaTokens && begin >= tile.begin &&
        begin + Shape::kTokens <= tile.end) {
      const int row = thread / Tile::kChunks, chunk = thread % Tile::kChunks;
      const std::int64_t of_lane = g * kv.head_stride + row * kv.token_stride + chunk * 16;
      const std::int64_t distance = kRowsAtOnce * kv.token_stride;
      std::int64_t offset = 0;
#pragma unroll
      for (int i = 0; i < kCopies / Shape::kThreads; ++i, offset += distance) {
        if (i * kRowsAtOnce % kMmaTokens == 0) {
          const int t = begin + i * kRowsAtOnce;
          const std::uint32_t block = __shfl_sync(kAllLanes, block_of_lane, i * kRowsAtOnce);
          offset = of_lane + block * kv.block_stride + (t & (kv.S - 1)) * kv.token_stride;
        }
        std::byte* to = keys + Tile::place(row + i * kRowsAtOnce, chunk);
        copy_async<16>(to, kv.k + offset, true);
        copy_async<16>(to + Shape::kPlane, kv.v + offset, true);
      }
    } else
#pragma unroll 2
      for (int i = 0; i < (kCopies + Shape::kThreads - 1) / Shape::kThreads; ++i) {
        const int copy = i * Shape::kThreads + thread;
        const int row = copy / Tile::kChunks, chunk = copy % Tile::kChunks;
        const int t = begin + row;
        const std::uint32_t block = __shfl_sync(kAllLanes, block_of_lane, row % Shape::kTokens);
        if (kCopies % Shape::kThreads != 0 && copy >= kCopies) continue;
        const bool wanted = is_wanted(t);
        const std::int64_t offset = block * kv.block_stride + g * kv.head_stride +
                                    (t & (kv.S - 1)) * kv.token_stride + chunk * 16;
        std::byte* to = keys + Tile::place(row, chunk);
        copy_async<16>(to, wanted ? kv.k + offset : kv.k, wanted);
        copy_async<16>(to + Shape::kPlane, wanted ? kv.v + offset : kv.v, wanted);
      }
    if (has_token_scales && warp * kWarp < 2 * Shape::kTokens) {
      const int token = thread % Shape::kTokens;
      const std::uint32_t block = __shfl_sync(kAllLanes, block_of_lane, token);
      const bool wanted = is_wanted(begin + token);
      float* plane = thread < Shape::kTokens ? kv.scales.k : kv.scales.v;
      copy_async<4>(keys + 2 * Shape::kPlane + thread * 4,
                    scale_address(kv.scales, plane, wanted ? block : 0, g,
                                  wanted ? (begin + token) & (kv.S - 1) : 0),
                    wanted);
    }
  };

  MmaStates<D> states;
  MmaTotals<D> totals;
  totals.acc = reinterpret_cast<float4*>(shared + Shape::kTotalsAt + warp * Shape::kTotals) + lane;
  int border = work.sizes.border_after(tile.begin);

  std::uint32_t next_block = block_of(0);
#pragma unroll
  for (int i = 0; i < Shape::kStages - 1; ++i) {
    if (i < iterations) {
      copy_stage(i, next_block);
      next_block = block_of(i + 1);
    }
    commit_copies();
  }
  for (int it = 0; it < iterations; ++it) {
    wait_copies<Shape::kStages - 2>();
    // After this, the copies of the other lanes have landed and no thread reads the previous stage.
    if constexpr (kWarps == 1)
      __syncwarp();
    else
      __syncthreads();
    const std::byte* stage = shared + it % Shape::kStages * Shape::kStage;
#pragma unroll 1
    for (int step = 0; step < Shape::kTokens; step += kMmaTokens) {
      const int begin = first + it * Shape::kTokens + step;
      if (begin == border) {
        totals.take(states);
        border = work.sizes.border_after(border);
      }
      if (begin + kMmaTokens <= seen_begin || begin >= seen_end) continue;
      const std::byte* keys = stage + step * Tile::kRowBytes;
      float scores[2][4] = {};
      Operands::score(q, keys, lane, scores);
      float top[2] = {states.max[0], states.max[1]};
      float k_scales[2][2], v_scales[2][2];  // of the lane's tokens n*8 + lane%4*2 + 0, 1
      if (has_token_scales)
#pragma unroll
        for (int n = 0; n < 2; ++n)
#pragma unroll
          for (int e = 0; e < 2; ++e) {
            const auto* scales = reinterpret_cast<const float*>(stage + 2 * Shape::kPlane) + step +
                                 n * 8 + lane % 4 * 2 + e;
            k_scales[n][e] = scales[0];
            v_scales[n][e] = scales[Shape::kTokens];
          }
      const bool is_whole = begin >= whole_begin && begin + kMmaTokens <= whole_end;
#pragma unroll
      for (int n = 0; n < 2; ++n)
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const int t = begin + n * 8 + lane % 4 * 2 + e % 2, half = e / 2;
          float score = rounded_product(scores[n][e], factors[half]);
          if (has_token_scales) score = rounded_product(score, k_scales[n][e % 2]);
          if (has_soft_cap) score = capped_score(args.soft_cap, score);
          const bool is_seen = is_whole || (t >= rows.begin[half] && t < rows.end[half]);
          scores[n][e] = is_seen ? score : -kInfinity;
          // With scales, a weight must be at most 1 after it is multiplied by the value's scale.
          const float level = has_token_scales && is_seen
                                  ? score + log2_approximate(v_scales[n][e % 2])
                                  : scores[n][e];
          top[half] = fmaxf(top[half], level);
        }
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        top[half] = fmaxf(top[half], __shfl_xor_sync(kAllLanes, top[half], 1));
        top[half] = fmaxf(top[half], __shfl_xor_sync(kAllLanes, top[half], 2));
      }
      states.raise(top);
      float base[2];
#pragma unroll
      for (int half = 0; half < 2; ++half)
        base[half] = states.max[half] > -kInfinity ? states.max[half] : 0.0f;
#pragma unroll
      for (int n = 0; n < 2; ++n)
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          scores[n][e] = exp2_approximate(scores[n][e] - base[e / 2]);
          states.sum[e / 2] += scores[n][e];
          if (has_token_scales) scores[n][e] = rounded_product(scores[n][e], v_scales[n][e % 2]);
        }
      // The lane's part of the scores is laid out as the first operand needs the weights.
      std::uint32_t weights[4];
#pragma unroll
      for (int i = 0; i < 4; ++i)
        weights[i] =
            pair_of<Operands::kWeights>(scores[i / 2][i % 2 * 2], scores[i / 2][i % 2 * 2 + 1]);
      Operands::add_values(weights, keys + Shape::kPlane, lane, states.acc);
    }
    // The stage that is filled now was read one iteration ago, before the barrier above.
    if (it + Shape::kStages - 1 < iterations) {
      copy_stage(it + Shape::kStages - 1, next_block);
      next_block = block_of(it + Shape::kStages);
    }
    commit_copies();
  }
  wait_copies<0>();
  totals.fold(states);

  const float v_scale = fixed_scale(kv.scales, kv.scales.v, g);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    if (!has_row[half]) continue;
    const AttentionSplit& split = work.splits[rows.split[half]];
    const int h = rows.h[half];
    if (split.state >= 0) {
      const StatePlace place = state_place(args, work, split.state, h);
#pragma unroll
      for (int i = 0; i < D / 8; ++i)
        *reinterpret_cast<float2*>(place.acc + Operands::first_dim(i, lane)) =
            Operands::pair(states.acc, i, half);
      if (lane % 4 == 0) {
        place.max[0] = states.max[half];
        place.max[1] = states.sum[half];
      }
      continue;
    }
    const Finish end = finish(args, h, states.max[half], states.sum[half], v_scale);
    const std::int64_t row = std::int64_t{split.query} * args.H + h;
    auto* out = static_cast<std::uint32_t*>(args.out) + row * D / 2;
#pragma unroll
    for (int i = 0; i < D / 8; ++i) {
      const float2 pair = Operands::pair(states.acc, i, half);
      const float low = pair.x * end.factor, high = pair.y * end.factor;
      out[Operands::first_dim(i, lane) / 2] = args.q_dtype == Dtype::bf16
                                                  ? pair_of<Dtype::bf16>(low, high)
                                                  : pair_of<Dtype::f16>(low, high);
    }
    if (lane % 4 == 0 && args.lse != nullptr) args.lse[row] = end.lse;
  }
}

template <Dtype kKv, int D, int kWarps>
[[nodiscard]] Expected<void> launch_tiles(const PagedAttentionArgs& args, const AttentionWork& work,
                                          int first, int count, CudaStream stream) {
  using Shape = MmaShape<kKv, D, kWarps>;
  if (count == 0) return {};
  const int groups = (args.H / args.kv.G + Shape::kRows - 1) / Shape::kRows;
  const std::int64_t blocks = std::int64_t{count} * args.kv.G * groups;
  if (blocks > 0x7fffffff)
    return failure(Errc::unsupported,
                   "paged attention: " + std::to_string(count) + " tiles in one call");
  const dim3 grid{static_cast<unsigned>(blocks), 1, 1};
  return launch(mma_attention<kKv, D, kWarps>, grid, dim3{Shape::kThreads, 1, 1},
                Shape::kSharedBytes, stream, args, work, first,
                __builtin_ctz(static_cast<unsigned>(args.kv.S)));
}

template <Dtype kKv, int D>
[[nodiscard]] Expected<void> launch_mma(const PagedAttentionArgs& args, const AttentionWork& work,
                                        CudaStream stream) {
  static_assert(MmaShape<kKv, D, 1>::kRows == kNarrowRows);
  static_assert(MmaShape<kKv, D, 4>::kRows == kWideRows);
  // Wide tiles take longer, so they start first.
  Expected<void> done =
      launch_tiles<kKv, D, 4>(args, work, work.narrow_tiles, work.wide_tiles, stream);
  if (!done) return done;
  return launch_tiles<kKv, D, 1>(args, work, 0, work.narrow_tiles, stream);
}

/// D is one of 64, 80, 96, 112, 128, 192, 256; rows are aligned to 16 bytes.
template <Dtype kKv>
[[nodiscard]] Expected<void> mma_attention_of(const PagedAttentionArgs& args,
                                              const AttentionWork& work, CudaStream stream) {
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
