#pragma once
// How attention is cut into pieces for the GPU's blocks: each query token's visible KV at multiples
// of a size that follows from the token's position alone. Hence a token's bits do not depend on
// what it is computed together with, and a batch of mixed lengths is balanced without looking at
// the whole: no piece is longer than kMaxSplitTokens. Plain C++.
//
// Source: the plan/run separation of FlashInfer (scheduler.cuh); Flash-Decoding.

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/paged_attention.hpp"

namespace kvhive {

inline constexpr std::int32_t kMinSplitTokens = 128;
inline constexpr std::int32_t kMaxSplitTokens = 1024;

/// Tokens per piece for a query at `position`: at most 64 pieces up to 64k tokens.
std::int32_t split_tokens_at(std::int32_t position);

/// One piece: query token `query` against positions begin..end-1 of its sequence b.
struct AttentionSplit {
  std::int32_t b = 0;
  std::int32_t query = 0;     ///< 0..T-1
  std::int32_t position = 0;  ///< of the query in its sequence
  std::int32_t begin = 0;
  std::int32_t end = 0;
  std::int32_t state = -1;  ///< where its (acc, max, sum) goes; -1: it is all of it, goes to out
};

/// A query token whose pieces are to be merged, in order.
struct SplitQuery {
  std::int32_t query = 0;
  std::int32_t first_state = 0;
  std::int32_t states = 0;
};

struct SplitPlan {
  std::vector<AttentionSplit> splits;
  std::vector<SplitQuery> merged;
  std::int32_t states = 0;

  /// Floats of AttentionWork::states.
  std::size_t state_floats(std::int32_t H, std::int32_t D) const {
    return static_cast<std::size_t>(states) * static_cast<std::size_t>(H) *
           (static_cast<std::size_t>(D) + 2);
  }
};

/// \param query_start  [B+1] and
/// \param kv_len       [B] as in PagedAttentionArgs, but on the host
/// \param window,chunk as there
SplitPlan plan_splits(std::span<const std::int32_t> query_start,
                      std::span<const std::int32_t> kv_len, std::int32_t window,
                      std::int32_t chunk);

/// The plan on the device; borrowed.
struct AttentionWork {
  const AttentionSplit* splits = nullptr;
  const SplitQuery* merged = nullptr;
  float* states = nullptr;  ///< SplitPlan::state_floats() of scratch, 16-byte aligned
  std::int32_t splits_count = 0;
  std::int32_t merged_count = 0;
  std::int32_t states_count = 0;
};

}  // namespace kvhive
