#pragma once
// Merges attention over two disjoint parts of the KV, such as a prefix that sequences share and the
// rest of each sequence (vLLM: merge_attn_states; FlashInfer: merge_state).

#include <cstdint>
#include <type_traits>

#include "config/dtype.hpp"

namespace kvhive {

/// out = (a * exp(a_lse) + b * exp(b_lse)) / (exp(a_lse) + exp(b_lse)); lse is the logarithm of
/// that divisor. A part whose lse is -inf has seen no token: its values are not read. If both are
/// -inf, out is 0 and lse -inf.
struct MergeStatesArgs {
  const void* a = nullptr;  ///< [T, H, D] of dtype
  const void* b = nullptr;
  const float* a_lse = nullptr;  ///< [T, H] natural logarithms
  const float* b_lse = nullptr;
  void* out = nullptr;   ///< [T, H, D] of dtype; may be a or b
  float* lse = nullptr;  ///< [T, H], may be a_lse or b_lse; null: not written
  std::int32_t T = 0, H = 0, D = 0;
  Dtype dtype = Dtype::f32;  ///< f32, bf16 or f16
};
static_assert(std::is_trivially_copyable_v<MergeStatesArgs>);

void merge_states_reference(const MergeStatesArgs& args);
void merge_states_cpu(const MergeStatesArgs& args);

}  // namespace kvhive
