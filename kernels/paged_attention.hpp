#pragma once
// Paged attention over a batch of sequences of different lengths. Decode has one query token per
// sequence, (chunked) prefill has many. Both are one contract: a token's result must not depend on
// which of the two computed it.
//
// Source: PagedAttention (Kwon et al., SOSP 2023); vLLM csrc/attention/attention_kernels.cuh. The
// softmax is computed online, in chunks whose borders depend on the sequence alone (so results are
// batch-invariant); the chunks' (max, sum, acc) states are merged in order.

#include <cstdint>
#include <type_traits>

#include "base/ids.hpp"
#include "kernels/paged_kv.hpp"

namespace kvhive {

/// Query token i of sequence b (0 <= i < q_len = query_start[b+1] - query_start[b]) has position p
/// = kv_len[b] - q_len + i. It attends to the positions t <= p that are inside `window` and
/// `chunk`. The K and V of the query tokens must be in the cache already. H is a multiple of G;
/// query head h reads kv head h / (H/G). Positions outside are masked by selection, not multiplied
/// by 0: their bytes may be NaN.
///
///   score(t) = cap(scale * q.k(t))
///   cap(x)   = soft_cap * tanh(x / soft_cap)
///   out      = sum of exp(score(t)) * v(t) / (sum of exp(score(t)) + exp(sink[h]))
///
/// A sequence may have no query tokens; then kv_len[b] may be 0.
struct PagedAttentionArgs {
  const void* q = nullptr;  ///< [T, H, D] of q_dtype
  PagedKv kv;
  /// [B, M] blocks of the device tier. Their ids are indices into the cache: block i is at kv.k + i
  /// * kv.block_stride. Entries past ceil(kv_len/S) are not read.
  const BlockId* block_table = nullptr;
  /// [B+1] first query token of each sequence; query_start[B] == T
  const std::int32_t* query_start = nullptr;
  const std::int32_t* kv_len = nullptr;  ///< [B] tokens in the cache, including the query tokens
  void* out = nullptr;                   ///< [T, H, D] of q_dtype
  /// [T, H] natural logarithm of the divisor above, including the sink; null: not written. It lets
  /// a caller merge results over parts of the KV (merge_states.hpp); pass sinks with one part only.
  float* lse = nullptr;
  const float* sinks = nullptr;  ///< [H]; null: none
  std::int32_t B = 0, H = 0, M = 0;
  Dtype q_dtype = Dtype::f32;  ///< f32, bf16 or f16
  std::int32_t window = 0;     ///< attend to the last `window` positions, own included; 0: all
  /// Chunked local attention (Llama 4): attend only to positions of the query's own chunk of this
  /// many tokens. 0: all.
  std::int32_t chunk = 0;
  float soft_cap = 0.0f;  ///< 0: none
  float scale = 1.0f;     ///< of q.k; 1/sqrt(D) unless the model says otherwise
};
static_assert(std::is_trivially_copyable_v<PagedAttentionArgs>);

/// In double precision, on one thread. The tests compare every backend with it.
void paged_attention_reference(const PagedAttentionArgs& args);

/// Uses all cores (OpenMP); SIMD is chosen at run time (Highway). A token's bits are the same for
/// any batch around it, any split of a sequence's tokens into calls, and any number of threads.
void paged_attention_cpu(const PagedAttentionArgs& args);

/// The layout that paged_attention_cpu reads fastest on this CPU, for blocks of S tokens and heads
/// of D elements.
PageLayout fastest_page_layout(std::int32_t S, std::int32_t D, Dtype dtype);

}  // namespace kvhive
