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

#include "kernels/paged_kv.hpp"

namespace kvhive {

/// Query token i of sequence b (i counts from 0 over its q_len = query_start[b+1]-query_start[b]
/// tokens) sits at position kv_len[b] - q_len + i and attends to positions 0..itself; with a window
/// W only to the last W of them (itself included). The KV of the query tokens must have been
/// written to the cache before. kv_len[b] == 0 (then q_len must be 0 too) is allowed and writes
/// nothing. H is a multiple of G; query head h reads kv head h / (H/G). Positions beyond kv_len are
/// never read into a result (stale bytes may be NaN).
struct PagedAttentionArgs {
  const float* q = nullptr;  ///< [T, H, D]
  PagedKv kv;
  /// [B, M] physical block indices; entries past ceil(kv_len/S) are not read
  const std::uint32_t* block_table = nullptr;
  /// [B+1] first query token of each sequence; query_start[B] == T
  const std::int32_t* query_start = nullptr;
  const std::int32_t* kv_len = nullptr;  ///< [B] tokens in the cache, the query's own included
  float* out = nullptr;                  ///< [T, H, D]
  std::int32_t B = 0, H = 0, M = 0;
  std::int32_t window = 0;  ///< sliding window in tokens; 0 = none
  float scale = 1.0f;       ///< multiplies q.k; 1/sqrt(D) unless the model says otherwise
};
static_assert(std::is_trivially_copyable_v<PagedAttentionArgs>);

/// Obvious double-precision truth; one thread, no tricks. The tests' yardstick.
void paged_attention_reference(const PagedAttentionArgs& args);

/// All cores (OpenMP), SIMD chosen at run time (Highway). Bit-equal for any batch composition, any
/// split of a sequence's tokens into calls, and any number of threads.
void paged_attention_cpu(const PagedAttentionArgs& args);

}  // namespace kvhive
