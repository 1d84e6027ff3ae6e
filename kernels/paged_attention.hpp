#pragma once
// Paged attention over a batch of sequences of different lengths. Decode is a query of one token,
// (chunked) prefill one of many: one contract for both, since a token's result must not depend on
// which of the two computed it.
//
// Source: PagedAttention (Kwon et al., SOSP 2023); vLLM csrc/attention/attention_kernels.cuh;
// online softmax in chunks whose borders depend on the sequence alone (batch-invariant), merged as
// (max, sum, acc) states in order.

#include <cstdint>
#include <type_traits>

#include "base/ids.hpp"
#include "kernels/paged_kv.hpp"

namespace kvhive {

/// Attention in blocks of `block` tokens (Phi-3-small; vLLM's "blocksparse"): a query in block i
/// attends to block j <= i if it is one of the last `local` (j > i - local), or a vertical one:
/// (j + offset) % vertical == 0. The offset is h * head_step + 1, or with a negative head_step
/// g * -head_step + 1: heads take turns.
struct BlockSparsity {
  std::int32_t block = 0;  ///< tokens, a multiple of S; 0 = not sparse
  std::int32_t local = 0;
  std::int32_t vertical = 0;  ///< at least 1; 1 = every block
  std::int32_t head_step = 0;
};

/// Query token i of sequence b (i counts from 0 over its q_len = query_start[b+1]-query_start[b]
/// tokens) sits at position p = kv_len[b] - q_len + i and attends to the positions t <= p that
/// window, chunk and sparsity leave. The KV of the query tokens must have been written to the cache
/// before. H is a multiple of G; query head h reads kv head h / (H/G). Positions that are not
/// attended to are never read into a result (stale bytes may be NaN).
///
///   score(t) = cap(scale * q.k(t)) + alibi_slope[h] * (t - p)
///   cap(x)   = soft_cap * tanh(x / soft_cap)
///   out      = sum of exp(score(t)) * v(t) / (sum of exp(score(t)) + exp(sink[h]))
///
/// A query that attends to nothing gets out 0 and lse -inf (or its sink). A sequence may have no
/// query tokens; kv_len[b] == 0 is allowed then.
struct PagedAttentionArgs {
  const void* q = nullptr;  ///< [T, H, D] of q_dtype
  PagedKv kv;
  /// [B, M] blocks of the device tier, whose ids are indices into the cache: block i is at kv.k +
  /// i * kv.block_stride. Entries past ceil(kv_len/S) are not read.
  const BlockId* block_table = nullptr;
  /// [B+1] first query token of each sequence; query_start[B] == T
  const std::int32_t* query_start = nullptr;
  const std::int32_t* kv_len = nullptr;  ///< [B] tokens in the cache, the query's own included
  void* out = nullptr;                   ///< [T, H, D] of q_dtype
  /// [T, H] natural logarithm of the divisor (sink included); null: not wanted. With it results
  /// over parts of the KV can be merged (merge_states.hpp); give the sinks to one part only.
  float* lse = nullptr;
  const float* alibi_slopes = nullptr;  ///< [H]; null = none
  const float* sinks = nullptr;         ///< [H]; null = none
  std::int32_t B = 0, H = 0, M = 0;
  Dtype q_dtype = Dtype::f32;  ///< f32, bf16 or f16
  std::int32_t window = 0;     ///< attends to the last `window` positions (own included); 0 = all
  /// Chunked local attention (Llama 4): only to positions of the query's own chunk of so many
  /// tokens; 0 = all.
  std::int32_t chunk = 0;
  BlockSparsity sparsity = {};
  float soft_cap = 0.0f;  ///< 0 = none
  float scale = 1.0f;     ///< multiplies q.k; 1/sqrt(D) unless the model says otherwise
};
static_assert(std::is_trivially_copyable_v<PagedAttentionArgs>);

/// Obvious double-precision truth; one thread, no tricks. The tests' yardstick.
void paged_attention_reference(const PagedAttentionArgs& args);

/// All cores (OpenMP), SIMD chosen at run time (Highway). Bit-equal for any batch composition, any
/// split of a sequence's tokens into calls, and any number of threads.
void paged_attention_cpu(const PagedAttentionArgs& args);

/// What paged_attention_cpu reads fastest on this CPU, of blocks of S tokens with heads of D.
PageLayout fastest_page_layout(std::int32_t S, std::int32_t D, Dtype dtype);

}  // namespace kvhive
