#pragma once
// Attention without tensor cores: for few query heads per kv head, and for shapes that the
// tensor-core kernel does not take. One block computes one piece (split_plan.hpp) for kHeads query
// heads.
//
// A row is worked on by kLanes threads, of which each has kVec elements; 128 / kLanes rows are
// worked on at once. A thread reads from shared memory only what it has copied there itself, so the
// main loop needs no barrier. Each group of threads has a softmax state of its own; the groups'
// states are merged in order at the end.

#include "kernels/cuda/attention_by_dtype.hpp"
#include "kernels/cuda/attention_state.cuh"
#include "kernels/cuda/launch.cuh"

namespace kvhive::device {

inline constexpr int kSimtThreads = 128;
inline constexpr int kSimtStages = 4;

template <Dtype kKv, int kVec, int kLanes, int kHeads>
struct SimtShape {
  using Chunk = Pack<kKv, kVec>;
  static constexpr int kRows = kSimtThreads / kLanes;
  static constexpr bool kHasTokenScales = bytes_of(kKv) == 1;
  static constexpr int kTile = kSimtThreads * static_cast<int>(sizeof(Chunk));
  static constexpr int kScales = kHasTokenScales ? kSimtThreads * 4 : 0;
  static constexpr int kStage = 2 * (kTile + kScales);  ///< K, V and their scales

  static constexpr int shared_bytes(int D) {
    const int loop = kSimtStages * kStage;
    const int merge = kRows * kHeads * (D + 2) * 4;
    return loop > merge ? loop : merge;
  }
};

/// \tparam Chunk is copied in pieces of 16 bytes, or in one piece of 8
template <class Chunk>
__device__ __forceinline__ void copy_chunk(Chunk* shared, const std::byte* global, bool wanted) {
  constexpr int kPiece = sizeof(Chunk) < 16 ? sizeof(Chunk) : 16;
#pragma unroll
  for (unsigned i = 0; i < sizeof(Chunk) / kPiece; ++i)
    copy_async<kPiece>(reinterpret_cast<std::byte*>(shared) + i * kPiece,
                       wanted ? global + i * 16 : global, wanted);
}

/// Grid: (pieces, H / kHeads). Without a soft cap, scores are computed in units of log2 from the
/// start.
template <Dtype kKv, int kVec, int kLanes, int kHeads, bool kHasSoftCap>
__global__ void __launch_bounds__(kSimtThreads)
    simt_attention(const __grid_constant__ PagedAttentionArgs args,
                   const __grid_constant__ AttentionWork work, int block_shift) {
  using Shape = SimtShape<kKv, kVec, kLanes, kHeads>;
  using Chunk = typename Shape::Chunk;
  constexpr int kRows = Shape::kRows;
  const PagedKv& kv = args.kv;
  const AttentionSplit split = work.splits[blockIdx.x];
  if (split.begin == split.end) return;
  const int thread = static_cast<int>(threadIdx.x);
  const int row = thread / kLanes, first_d = thread % kLanes * kVec;
  const bool has_elements = first_d < kv.D;
  const int first_h = static_cast<int>(blockIdx.y) * kHeads;
  const int g = first_h / (args.H / kv.G);

  std::byte* shared = shared_memory();
  const auto k_slot = [=](int stage) {
    return reinterpret_cast<Chunk*>(shared + stage * Shape::kStage) + thread;
  };
  const auto v_slot = [=](int stage) {
    return reinterpret_cast<Chunk*>(shared + stage * Shape::kStage + Shape::kTile) + thread;
  };
  const auto scale_slots = [=](int stage) {  // of K, then of V
    return reinterpret_cast<float*>(shared + stage * Shape::kStage + 2 * Shape::kTile) + 2 * thread;
  };

  const bool has_token_scales = Shape::kHasTokenScales && kv.scales.are_per_token();
  const float k_scale = fixed_scale(kv.scales, kv.scales.k, g);
  const float v_scale = fixed_scale(kv.scales, kv.scales.v, g);

  float q[kHeads][kVec];
  ThreadState<kVec> states[kHeads];
  const float q_factor = args.scale * k_scale * (kHasSoftCap ? 1.0f : kLog2E);
#pragma unroll
  for (int j = 0; j < kHeads; ++j) {
    const std::int64_t q_row = (std::int64_t{split.query} * args.H + first_h + j) * kv.D;
#pragma unroll
    for (int i = 0; i < kVec; ++i)
      q[j][i] = has_elements ? load_value(args.q, q_row + first_d + i, args.q_dtype) * q_factor : 0;
  }

  const BlockId* table = args.block_table + std::int64_t{split.b} * args.M;
  const int iterations = (split.end - split.begin + kRows - 1) / kRows;
  const auto block_of = [&](int iteration) {
    const int t = split.begin + iteration * kRows + row;
    return t < split.end ? table[t >> block_shift].value : 0u;
  };
  const auto copy_row = [&](int iteration, std::uint32_t block) {
    const int stage = iteration % kSimtStages;
    const int t = split.begin + iteration * kRows + row;
    const int slot = t & (kv.S - 1);
    const bool wanted = t < split.end;
    const std::int64_t offset = block * kv.block_stride + g * kv.head_stride +
                                slot * kv.token_stride +
                                first_d * static_cast<std::int64_t>(sizeof(Chunk) / kVec);
    const bool is_read = wanted && has_elements;
    copy_chunk(k_slot(stage), is_read ? kv.k + offset : kv.k, is_read);
    copy_chunk(v_slot(stage), is_read ? kv.v + offset : kv.v, is_read);
    if (has_token_scales) {
      float* slots = scale_slots(stage);
      const int at = wanted ? slot : 0;
      copy_async<4>(slots, scale_address(kv.scales, kv.scales.k, block, g, at), wanted);
      copy_async<4>(slots + 1, scale_address(kv.scales, kv.scales.v, block, g, at), wanted);
    }
  };

  // The block table is read one iteration before the copy that needs it.
  std::uint32_t next_block = block_of(0);
#pragma unroll
  for (int i = 0; i < kSimtStages - 1; ++i) {
    if (i < iterations) {
      copy_row(i, next_block);
      next_block = block_of(i + 1);
    }
    commit_copies();
  }
  for (int i = 0; i < iterations; ++i) {
    wait_copies<kSimtStages - 2>();
    const int stage = i % kSimtStages;
    const int t = split.begin + i * kRows + row;
    const float token_k_scale = has_token_scales ? scale_slots(stage)[0] : 1.0f;
    const float token_v_scale = has_token_scales ? scale_slots(stage)[1] : 1.0f;

    float values[kVec];
    const Chunk k = *k_slot(stage);
#pragma unroll
    for (int e = 0; e < kVec; ++e) values[e] = Element<kKv>::value(k.of[e]);
    float scores[kHeads];
#pragma unroll
    for (int j = 0; j < kHeads; ++j) {
      float dot = 0;
#pragma unroll
      for (int e = 0; e < kVec; ++e) dot += q[j][e] * values[e];
#pragma unroll
      for (int distance = kLanes / 2; distance > 0; distance /= 2)
        dot += __shfl_xor_sync(kAllLanes, dot, distance);
      scores[j] = dot * token_k_scale;
    }
    const Chunk v = *v_slot(stage);
#pragma unroll
    for (int e = 0; e < kVec; ++e) values[e] = Element<kKv>::value(v.of[e]);
#pragma unroll
    for (int j = 0; j < kHeads; ++j) {
      if (t >= split.end) continue;
      if constexpr (kHasSoftCap) scores[j] = capped_score(args.soft_cap, scores[j]);
      states[j].add(scores[j], values, token_v_scale);
    }
    if (i + kSimtStages - 1 < iterations) {
      copy_row(i + kSimtStages - 1, next_block);
      next_block = block_of(i + kSimtStages);
    }
    commit_copies();
  }
  wait_copies<0>();

  __syncthreads();  // from here on the memory of the copies holds the states
  auto* maxima = reinterpret_cast<float*>(shared);  // [kRows][kHeads][max, sum]
  float* accs = maxima + kRows * kHeads * 2;        // [kRows][kHeads][D]
#pragma unroll
  for (int j = 0; j < kHeads; ++j) {
    const int at = row * kHeads + j;
    if (first_d == 0) {
      maxima[2 * at] = states[j].max;
      maxima[2 * at + 1] = states[j].sum;
    }
    if (has_elements)
#pragma unroll
      for (int e = 0; e < kVec; ++e) accs[at * kv.D + first_d + e] = states[j].acc[e];
  }
  __syncthreads();
  for (int i = thread; i < kHeads * kv.D; i += kSimtThreads) {
    const int j = i / kv.D, d = i % kv.D;
    const Merged all = merge_states_at<kRows>(maxima, accs, j, kHeads, kv.D, d);
    write_piece(args, work, split, first_h + j, d, all.max, all.sum, all.acc, v_scale);
  }
}

template <Dtype kKv, int kVec, int kLanes, int kHeads>
[[nodiscard]] Expected<void> launch_simt(const PagedAttentionArgs& args, const AttentionWork& work,
                                         CudaStream stream) {
  const auto kernel = args.soft_cap > 0 ? simt_attention<kKv, kVec, kLanes, kHeads, true>
                                        : simt_attention<kKv, kVec, kLanes, kHeads, false>;
  const dim3 grid{static_cast<unsigned>(work.splits_count), static_cast<unsigned>(args.H / kHeads),
                  1};
  return launch(kernel, grid, dim3{kSimtThreads, 1, 1},
                SimtShape<kKv, kVec, kLanes, kHeads>::shared_bytes(args.kv.D), stream, args, work,
                __builtin_ctz(static_cast<unsigned>(args.kv.S)));
}

template <Dtype kKv, int kVec, int kLanes>
[[nodiscard]] Expected<void> launch_simt_heads(const PagedAttentionArgs& args,
                                               const AttentionWork& work, CudaStream stream) {
  return args.H / args.kv.G % 2 == 0 ? launch_simt<kKv, kVec, kLanes, 2>(args, work, stream)
                                     : launch_simt<kKv, kVec, kLanes, 1>(args, work, stream);
}

template <Dtype kKv>
[[nodiscard]] Expected<void> simt_attention_of(const PagedAttentionArgs& args,
                                               const AttentionWork& work, CudaStream stream) {
  const int D = args.kv.D;
  if constexpr (bytes_of(kKv) == 1) {
    if (alignment_of(args.kv) >= 16 && D % 16 == 0)
      return D <= 64    ? launch_simt_heads<kKv, 16, 4>(args, work, stream)
             : D <= 128 ? launch_simt_heads<kKv, 16, 8>(args, work, stream)
                        : launch_simt_heads<kKv, 16, 16>(args, work, stream);
    return D <= 128 ? launch_simt_heads<kKv, 8, 16>(args, work, stream)
                    : launch_simt_heads<kKv, 8, 32>(args, work, stream);
  } else {
    return D <= 64    ? launch_simt_heads<kKv, 8, 8>(args, work, stream)
           : D <= 128 ? launch_simt_heads<kKv, 8, 16>(args, work, stream)
                      : launch_simt_heads<kKv, 8, 32>(args, work, stream);
  }
}

}  // namespace kvhive::device
