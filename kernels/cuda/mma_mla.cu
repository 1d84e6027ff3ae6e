// Latent attention on tensor cores. A block of threads computes one piece for 16 rows
// (split_plan.hpp), in steps of 64 tokens that begin at multiples of 64. In each step, each of the
// four warps computes the scores of 16 tokens. Then each warp adds up 128 of the 512 dims over all
// 64 tokens; it reads the other warps' weights from shared memory. 128 dims are what the registers
// of a warp can hold.
//
// Source: FlashMLA (row of 656 bytes; a row of K is also the value).

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/mma_operands.cuh"
#include "kernels/cuda/mma_states.cuh"
#include "kernels/mla_row.hpp"

namespace kvhive::device {
namespace {

constexpr int kWarps = 4;
constexpr int kThreads = kWarps * kWarp;
constexpr int kTokens = kWarps * kMmaTokens;  ///< tokens of a step
constexpr int kDims = kMlaLatent / kWarps;    ///< dims of the result that one warp adds up
static_assert(kDims == kMlaScaleGroup);

/// Shared memory: the rows of a step as they lie in the cache, and what warps pass to each other.
template <MlaRow kRow>
struct MlaShape {
  static constexpr int kStages = 2;
  static constexpr int kChunks = static_cast<int>(bytes_of(kRow)) / 16;
  static constexpr int kRowBytes =
      (kChunks + 7) / 8 * 128;  ///< rounded up to whole groups of 8 chunks
  static constexpr int kStage = kTokens * kRowBytes;
  static constexpr int kQueriesAt = kStages * kStage;
  static constexpr int kQueries =
      kMlaRow / 16 * kWarp * 16;                            ///< fragments of q, shared by all warps
  static constexpr int kWeightsAt = kQueriesAt + kQueries;  ///< [warp][2][lane] of four
  static constexpr int kTopsAt = kWeightsAt + kThreads * 32;  ///< [warp][row]
  static constexpr int kSharedBytes = kTopsAt + kWarps * kMmaRows * 4;
  /// Type of the latents; the rope part is bf16.
  static constexpr Dtype kStored = kRow == MlaRow::bf16 ? Dtype::bf16 : Dtype::e4m3;
  static constexpr int kRopeChunk =
      static_cast<int>(kRow == MlaRow::bf16 ? 2 * kMlaLatent : kMlaRopeAt) / 16;

  static __device__ __forceinline__ int place(int row, int chunk) {
    return row * kRowBytes + ((chunk & ~7) | ((chunk ^ row) & 7)) * 16;
  }
  /// fp8 only: the scale of dims 128 * group to 128 * group + 127.
  static __device__ __forceinline__ float scale(const std::byte* stage, int token, int group) {
    constexpr int kChunk = static_cast<int>(kMlaScalesAt) / 16;
    return reinterpret_cast<const float*>(stage + place(token, kChunk))[group];
  }
};

/// Four e4m3 as two pairs of bf16; exact.
struct TwoPairs {
  std::uint32_t low, high;

  explicit __device__ __forceinline__ TwoPairs(std::uint32_t four)
      : low(pair(four)), high(pair(four >> 16)) {}

 private:
  static __device__ __forceinline__ std::uint32_t pair(std::uint32_t two) {
    const std::uint32_t f16 = f16_pair_of<Dtype::e4m3>(static_cast<std::uint16_t>(two));
    return pair_of<Dtype::bf16>(value_of_f16(static_cast<std::uint16_t>(f16)),
                                value_of_f16(static_cast<std::uint16_t>(f16 >> 16)));
  }
};

/// Loads fragment kk of q as first operand, with the dims in the order in which K is loaded
/// (mma_operands.cuh).
template <MlaRow kRow>
__device__ __forceinline__ Bytes16 query_fragment(const std::uint16_t* const (&rows)[2], int kk,
                                                  int lane) {
  const bool is_in_order = kRow == MlaRow::bf16 || kk >= kMlaLatent / 16;
  Bytes16 fragment;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const auto* pairs = reinterpret_cast<const std::uint32_t*>(rows[i % 2]);
    const int pair = is_in_order ? lane % 4 + i / 2 * 4 : lane % 4 * 2 + i / 2;
    fragment.words[i] = pairs != nullptr ? pairs[kk * 8 + pair] : 0;
  }
  return fragment;
}

__device__ __forceinline__ void multiply_add(float (&d)[4], const Bytes16& a, std::uint32_t b_low,
                                             std::uint32_t b_high) {
  mma_bf16(d, {a.words[0], a.words[1], a.words[2], a.words[3]}, {b_low, b_high});
}

/// Computes the scores of tokens first..first + 15 of the stage; laid out as in MmaOperands.
template <MlaRow kRow>
__device__ __forceinline__ void score(const Bytes16* queries, const std::byte* stage, int first,
                                      int lane, float (&scores)[2][4]) {
  using Shape = MlaShape<kRow>;
  const auto score_in_order = [&](int kk, int chunk) {
    std::uint32_t k[4];  // tokens 0..7 (dims low, high), tokens 8..15
    load_matrices(k, stage + Shape::place(first + lane / 16 * 8 + lane % 8, chunk + lane / 8 % 2));
    const Bytes16 a = queries[kk * kWarp + lane];
    multiply_add(scores[0], a, k[0], k[1]);
    multiply_add(scores[1], a, k[2], k[3]);
  };
  if constexpr (kRow == MlaRow::bf16) {
#pragma unroll 4
    for (int kk = 0; kk < kMlaLatent / 16; ++kk) score_in_order(kk, kk * 2);
  } else {
#pragma unroll 1
    for (int group = 0; group < kWarps; ++group) {
      float part[2][4] = {};
#pragma unroll
      for (int kk = group * kDims / 16; kk < (group + 1) * kDims / 16; kk += 2) {
        std::uint32_t k[4];  // of each chunk: tokens 0..7, tokens 8..15
        load_matrices(k, stage + Shape::place(first + lane % 16, kk + lane / 16));
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const TwoPairs pairs(k[i]);
          multiply_add(part[i % 2], queries[(kk + i / 2) * kWarp + lane], pairs.low, pairs.high);
        }
      }
#pragma unroll
      for (int n = 0; n < 2; ++n)
#pragma unroll
        for (int e = 0; e < 4; ++e)
          scores[n][e] =
              fmaf(part[n][e], Shape::scale(stage, first + n * 8 + lane % 4 * 2 + e % 2, group),
                   scores[n][e]);
    }
  }
#pragma unroll
  for (int i = 0; i < kMlaRope / 16; ++i)
    score_in_order(kMlaLatent / 16 + i, Shape::kRopeChunk + i * 2);
}

/// Adds tokens first..first + 15, times their weights, to the dims of `group`.
template <MlaRow kRow>
__device__ __forceinline__ void add_values(const float (&weights)[2][4], const std::byte* stage,
                                           int first, int group, int lane, MmaResult<kDims>& acc) {
  using Shape = MlaShape<kRow>;
  Bytes16 a;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    float pair[2];
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      pair[e] = weights[i / 2][i % 2 * 2 + e];
      if constexpr (kRow == MlaRow::fp8)
        pair[e] *= Shape::scale(stage, first + i / 2 * 8 + lane % 4 * 2 + e, group);
    }
    a.words[i] = pair_of<Dtype::bf16>(pair[0], pair[1]);
  }
  if constexpr (kRow == MlaRow::bf16) {
#pragma unroll
    for (int n = 0; n < kDims / 16; ++n) {
      std::uint32_t v[4];  // dims 0..7 (tokens low, high), dims 8..15
      load_matrices_transposed(
          v, stage + Shape::place(first + lane % 16, group * kDims / 8 + n * 2 + lane / 16));
      multiply_add(acc[2 * n], a, v[0], v[1]);
      multiply_add(acc[2 * n + 1], a, v[2], v[3]);
    }
  } else {
#pragma unroll
    for (int chunk = 0; chunk < kDims / 16; chunk += 2) {
      std::uint32_t v[4];  // of each chunk: tokens low, high; two dims of one, then of the next
      load_matrices_transposed(
          v, stage + Shape::place(first + lane % 16, group * kDims / 16 + chunk + lane / 16));
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const TwoPairs low(swap_middle_bytes(v[2 * i])), high(swap_middle_bytes(v[2 * i + 1]));
        multiply_add(acc[2 * (chunk + i)], a, low.low, high.low);
        multiply_add(acc[2 * (chunk + i) + 1], a, low.high, high.high);
      }
    }
  }
}

/// `kv` is the cache; its other sizes are in `args`. Grid: (pieces, groups of 16 heads).
template <MlaRow kRow>
__global__ void __launch_bounds__(kThreads, 1)  // shared memory has room for one block only
    mma_mla_attention(const __grid_constant__ PagedAttentionArgs args,
                      const __grid_constant__ PagedLatents kv,
                      const __grid_constant__ AttentionWork work) {
  using Shape = MlaShape<kRow>;
  using Operands = MmaOperands<Shape::kStored, kDims>;
  const AttentionSplit split = work.splits[blockIdx.x];
  if (split.begin == split.end) return;
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % kWarp, warp = thread / kWarp;
  const int first_h = static_cast<int>(blockIdx.y) * kMmaRows;
  std::byte* const shared = shared_memory();

  auto* const queries = reinterpret_cast<Bytes16*>(shared + Shape::kQueriesAt);
  {
    const std::uint16_t* q_rows[2] = {};
#pragma unroll
    for (int half = 0; half < 2; ++half)
      if (const int h = first_h + lane / 4 + half * 8; h < args.H)
        q_rows[half] = static_cast<const std::uint16_t*>(args.q) +
                       (std::int64_t{split.query} * args.H + h) * kMlaRow;
    for (int kk = warp; kk < kMlaRow / 16; kk += kWarps)
      queries[kk * kWarp + lane] = query_fragment<kRow>(q_rows, kk, lane);
  }

  const BlockId* table = args.block_table + std::int64_t{split.b} * args.M;
  const int first = split.begin / kTokens * kTokens;
  const int iterations = (split.end - first + kTokens - 1) / kTokens;
  const auto is_seen = [&](int t) { return t >= split.begin && t < split.end; };
  const auto copy_stage = [&](int iteration) {
    std::byte* stage = shared + iteration % Shape::kStages * Shape::kStage;
#pragma unroll 2
    for (int copy = thread; copy < kTokens * Shape::kChunks; copy += kThreads) {
      const int row = copy / Shape::kChunks, chunk = copy % Shape::kChunks;
      const int t = first + iteration * kTokens + row;
      const bool wanted = is_seen(t);
      const std::byte* from = wanted ? kv.base + table[t / kv.S].value * kv.block_stride +
                                           t % kv.S * kv.token_stride + chunk * 16
                                     : kv.base;
      copy_async<16>(stage + Shape::place(row, chunk), from, wanted);
    }
  };

  MmaStates<kDims> states;  // the sums are of this warp's tokens
  auto* const tops = reinterpret_cast<float*>(shared + Shape::kTopsAt);
  auto* const all_weights = reinterpret_cast<float4*>(shared + Shape::kWeightsAt);
  const float factor = args.scale * kLog2E;
  copy_stage(0);
  commit_copies();
  for (int it = 0; it < iterations; ++it) {
    wait_copies<0>();
    __syncthreads();  // the other warps' copies have landed, and no warp reads the previous stage
    if (it + 1 < iterations) copy_stage(it + 1);
    commit_copies();
    const std::byte* stage = shared + it % Shape::kStages * Shape::kStage;
    float weights[2][4] = {}, top[2] = {-kInfinity, -kInfinity};
    score<kRow>(queries, stage, warp * kMmaTokens, lane, weights);
#pragma unroll
    for (int n = 0; n < 2; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int t = first + it * kTokens + warp * kMmaTokens + n * 8 + lane % 4 * 2 + e % 2;
        weights[n][e] = is_seen(t) ? rounded_product(weights[n][e], factor) : -kInfinity;
        top[e / 2] = fmaxf(top[e / 2], weights[n][e]);
      }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      top[half] = fmaxf(top[half], __shfl_xor_sync(kAllLanes, top[half], 1));
      top[half] = fmaxf(top[half], __shfl_xor_sync(kAllLanes, top[half], 2));
      if (lane % 4 == 0) tops[warp * kMmaRows + lane / 4 + half * 8] = top[half];
    }
    __syncthreads();
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      top[half] = states.max[half];
#pragma unroll
      for (int w = 0; w < kWarps; ++w)
        top[half] = fmaxf(top[half], tops[w * kMmaRows + lane / 4 + half * 8]);
    }
    states.raise(top);
#pragma unroll
    for (int n = 0; n < 2; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        weights[n][e] = exp2_approximate(weights[n][e] - top[e / 2]);
        states.sum[e / 2] += weights[n][e];
      }
      all_weights[(warp * 2 + n) * kWarp + lane] =
          make_float4(weights[n][0], weights[n][1], weights[n][2], weights[n][3]);
    }
    __syncthreads();
#pragma unroll
    for (int w = 0; w < kWarps; ++w) {
#pragma unroll
      for (int n = 0; n < 2; ++n) {
        const float4 four = all_weights[(w * 2 + n) * kWarp + lane];
        weights[n][0] = four.x;
        weights[n][1] = four.y;
        weights[n][2] = four.z;
        weights[n][3] = four.w;
      }
      add_values<kRow>(weights, stage, w * kMmaTokens, warp, lane, states.acc);
    }
  }
  wait_copies<0>();

  states.gather_sums();
  __syncthreads();
  float* const sums = tops;
#pragma unroll
  for (int half = 0; half < 2; ++half)
    if (lane % 4 == 0) sums[warp * kMmaRows + lane / 4 + half * 8] = states.sum[half];
  __syncthreads();
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = lane / 4 + half * 8, h = first_h + row;
    if (h >= args.H) continue;
    float sum = 0;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) sum += sums[w * kMmaRows + row];
#pragma unroll
    for (int i = 0; i < kDims / 8; ++i) {
      const int d = warp * kDims + Operands::first_dim(i, lane);
      const float2 pair = Operands::pair(states.acc, i, half);
      write_piece(args, work, split, h, d, states.max[half], sum, pair.x, 1.0f);
      write_piece(args, work, split, h, d + 1, states.max[half], sum, pair.y, 1.0f);
    }
  }
}

template <MlaRow kRow>
Expected<void> launch_mla(const PagedAttentionArgs& args, const PagedLatents& kv,
                          const AttentionWork& work, CudaStream stream) {
  const dim3 grid{static_cast<unsigned>(work.splits_count),
                  static_cast<unsigned>((args.H + kMmaRows - 1) / kMmaRows), 1};
  return launch(mma_mla_attention<kRow>, grid, dim3{kThreads, 1, 1}, MlaShape<kRow>::kSharedBytes,
                stream, args, kv, work);
}

}  // namespace

Expected<void> mma_mla(const PagedAttentionArgs& args, const PagedLatents& kv,
                       const AttentionWork& work, CudaStream stream) {
  return kv.row == MlaRow::fp8 ? launch_mla<MlaRow::fp8>(args, kv, work, stream)
                               : launch_mla<MlaRow::bf16>(args, kv, work, stream);
}

}  // namespace kvhive::device
