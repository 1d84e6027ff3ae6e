#pragma once
// Softmax states in scratch, and how one becomes a result. Scores are in units of log2: a state is
// max, sum of exp2(score - max), acc = sum of exp2(score - max) * v; nothing seen: max -inf, sum 0.

#include "kernels/cuda/element.cuh"
#include "kernels/cuda/split_plan.hpp"

namespace kvhive::device {

struct StatePlace {
  float* acc;  ///< [D]
  float* max;  ///< max, then sum
};

/// Of head h in state `state`: all acc [states, H, D], then all (max, sum) [states, H, 2].
__device__ __forceinline__ StatePlace state_place(const PagedAttentionArgs& args,
                                                  const AttentionWork& work, int state, int h) {
  const std::int64_t row = std::int64_t{state} * args.H + h;
  float* maxima = work.states + std::int64_t{work.states_count} * args.H * args.kv.D;
  return {work.states + row * args.kv.D, maxima + 2 * row};
}

/// How a final state is written: out = acc * factor.
struct Finish {
  float factor;
  float lse;
};

__device__ __forceinline__ Finish finish(const PagedAttentionArgs& args, int h, float max,
                                         float sum) {
  if (args.sinks != nullptr) {
    const float sink = args.sinks[h] * kLog2E;
    const float top = fmaxf(max, sink);
    if (top == -kInfinity) return {0.0f, -kInfinity};
    const float shrink = max > -kInfinity ? exp2_approximate(max - top) : 0.0f;
    const float total = sum * shrink + exp2_approximate(sink - top);
    return {shrink / total, top * kLn2 + logf(total)};
  }
  if (!(max > -kInfinity)) return {0.0f, -kInfinity};
  return {1.0f / sum, max * kLn2 + logf(sum)};
}

}  // namespace kvhive::device
