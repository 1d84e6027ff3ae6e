#pragma once
// Softmax states: where they lie in scratch, how two are folded into one, and how a final one
// becomes a result. Scores are in units of log2. A state has max, sum = sum of exp2(score - max),
// and acc = sum of exp2(score - max) * v with v as stored. A state that has seen no position has
// max -inf and sum 0.

#include "kernels/cuda/cuda_kernels.hpp"
#include "kernels/cuda/element.cuh"
#include "kernels/cuda/split_plan.hpp"

namespace kvhive::device {

struct StatePlace {
  float* acc;  ///< [D]
  float* max;  ///< max, then sum
};

/// Where state `state` of head h is in scratch: first all acc [states, H, D], then all (max, sum)
/// [states, H, 2].
__device__ __forceinline__ StatePlace state_place(const PagedAttentionArgs& args,
                                                  const AttentionWork& work, int state, int h) {
  const std::int64_t row = std::int64_t{state} * args.H + h;
  float* maxima = work.states + std::int64_t{work.states_count} * args.H * args.kv.D;
  return {work.states + row * args.kv.D, maxima + 2 * row};
}

/// Folds a state with the state of the positions behind it. All roundings are explicit and an empty
/// state changes nothing, so that every kernel that folds the same states gets the same bits.
struct Fold {
  float max;  ///< of the folded state
  bool takes_first, takes_second;
  float first, second;  ///< factors, if both states are not empty

  __device__ __forceinline__ Fold(float first_max, float second_max)
      : max(fmaxf(first_max, second_max)),
        takes_first(first_max > -kInfinity),
        takes_second(second_max > -kInfinity),
        first(takes_first ? exp2_approximate(first_max - max) : 0.0f),
        second(takes_second ? exp2_approximate(second_max - max) : 0.0f) {}

  /// Folds the two sums, or the two values of an element of acc.
  __device__ __forceinline__ float operator()(float of_first, float of_second) const {
    const float both = fmaf(of_first, first, rounded_product(of_second, second));
    return !takes_second ? of_first : !takes_first ? of_second : both;
  }
};

/// What a final state is written with: out = acc * factor, and lse.
struct Finish {
  float factor;
  float lse;
};

/// \param v_scale factor that acc still lacks (fixed_scale)
__device__ __forceinline__ Finish finish(const PagedAttentionArgs& args, int h, float max,
                                         float sum, float v_scale) {
  if (args.sinks != nullptr) {
    const float sink = args.sinks[h] * kLog2E;
    const float top = fmaxf(max, sink);
    if (top == -kInfinity) return {0.0f, -kInfinity};
    const float shrink = max > -kInfinity ? exp2_approximate(max - top) : 0.0f;
    const float total = fmaf(sum, shrink, exp2_approximate(sink - top));
    return {v_scale * (shrink / total), fmaf(top, kLn2, logf(total))};
  }
  if (!(max > -kInfinity)) return {0.0f, -kInfinity};
  return {v_scale / sum, fmaf(max, kLn2, logf(sum))};
}

/// Writes element d of head h of a piece, given the piece's (max, sum, acc): to scratch if the
/// query has more pieces, else to out. The thread with d == 0 also writes max and sum, or lse.
__device__ __forceinline__ void write_piece(const PagedAttentionArgs& args,
                                            const AttentionWork& work, const AttentionSplit& split,
                                            int h, int d, float max, float sum, float acc,
                                            float v_scale) {
  if (split.state >= 0) {
    const StatePlace place = state_place(args, work, split.state, h);
    place.acc[d] = acc;
    if (d == 0) {
      place.max[0] = max;
      place.max[1] = sum;
    }
    return;
  }
  const Finish end = finish(args, h, max, sum, v_scale);
  const std::int64_t row = std::int64_t{split.query} * args.H + h;
  store_value(args.out, row * args.kv.D + d, args.q_dtype, acc * end.factor);
  if (d == 0 && args.lse != nullptr) args.lse[row] = end.lse;
}

/// One thread's part of a head's softmax state over some rows: kVec elements of acc.
template <int kVec>
struct ThreadState {
  float max = -kInfinity;
  float sum = 0;
  float acc[kVec] = {};

  /// Adds a row. score > -inf. The value is weight_scale * v.
  __device__ __forceinline__ void add(float score, const float (&v)[kVec], float weight_scale) {
    const float top = fmaxf(max, score);
    const float shrink = exp2_approximate(max - top);
    const float weight = exp2_approximate(score - top);
    max = top;
    sum = sum * shrink + weight;
    const float scaled = weight * weight_scale;
#pragma unroll
    for (int i = 0; i < kVec; ++i) acc[i] = acc[i] * shrink + scaled * v[i];
  }
};

/// Merges kStates states in shared memory in order. State i is at index first + i * stride:
/// maxima[2 * index] is its max, the next float its sum, accs[index * D + d] its acc.
struct Merged {
  float max, sum, acc;
};
template <int kStates>
__device__ __forceinline__ Merged merge_states_at(const float* maxima, const float* accs, int first,
                                                  int stride, int D, int d) {
  Merged all{-kInfinity, 0, 0};
#pragma unroll 1
  for (int i = 0; i < kStates; ++i) all.max = fmaxf(all.max, maxima[2 * (first + i * stride)]);
  if (!(all.max > -kInfinity)) return all;
#pragma unroll 1
  for (int i = 0; i < kStates; ++i) {
    const int at = first + i * stride;
    const float weight = exp2_approximate(maxima[2 * at] - all.max);
    all.sum += weight * maxima[2 * at + 1];
    all.acc += weight * accs[at * D + d];
  }
  return all;
}

/// Applies the soft cap to a score in natural units; the result is in units of log2.
__device__ __forceinline__ float capped_score(float soft_cap, float score) {
  return rounded_product(rounded_product(soft_cap, tanhf(score / soft_cap)), kLog2E);
}

/// The scale of all tokens of head g; 1 if there is none, or if each token has its own.
__device__ __forceinline__ float fixed_scale(const KvScales& scales, float* plane, int g) {
  if (plane == nullptr || scales.are_per_token()) return 1.0f;
  return *scale_address(scales, plane, 0, g, 0);
}

/// Starts the kernel that folds the states in scratch and writes the results.
[[nodiscard]] Expected<void> launch_combine(const PagedAttentionArgs& args,
                                            const AttentionWork& work, CudaStream stream);

}  // namespace kvhive::device
