#pragma once
// How attention is cut into work for the GPU's blocks. Plain C++.
//
// The KV that a query token sees is a row of pieces whose borders depend on positions alone
// (piece_sizes.hpp). A piece has a softmax state; a token's states are folded in order, wherever
// that is done. Hence its bits do not depend on what it is computed together with, and the plan may
// look at the whole batch:
//
//   - query tokens whose tables have the same blocks over a piece share one pass over it: those of
//     a prefill's sequence, and those of different sequences with a common prefix (a cascade, at
//     any depth and for any part of the batch);
//   - where there is work enough for the GPU without it, a token's leading pieces are one run,
//   folded
//     on the way; later pieces are states in scratch.
//
// Source: Flash-Decoding; the plan/run separation of FlashInfer (scheduler.cuh) and its cascade
// (Ye et al., 2024); Hydragen (Juravsky et al., 2024).

#include <cstdint>
#include <vector>

#include "kernels/cuda/piece_sizes.hpp"
#include "kernels/paged_attention.hpp"
#include "kernels/paged_mla.hpp"

namespace kvhive {

/// Query token `query` against positions begin..end-1 of its sequence b: what it sees of a piece or
/// of a run.
struct AttentionSplit {
  std::int32_t b = 0;
  std::int32_t query = 0;     ///< 0..T-1
  std::int32_t position = 0;  ///< of the query in its sequence
  std::int32_t begin = 0;
  std::int32_t end = 0;     ///< == begin: no split, padding
  std::int32_t state = -1;  ///< where its (acc, max, sum) goes; -1: it is all of it, goes to out
};

/// Splits that share one pass over positions begin..end-1, read through the first one's table.
/// Each sees a part of them.
struct AttentionTile {
  std::int32_t first_split = 0;
  std::int32_t splits = 0;  ///< 0: no tile, padding
  std::int32_t begin = 0;
  std::int32_t end = 0;
};

/// A query token whose states are to be folded, in order.
struct SplitQuery {
  std::int32_t query = 0;
  std::int32_t first_state = 0;
  std::int32_t states = 0;  ///< 0: no query, padding
};

/// A row of a tile is a query token with one head of the kv head.
inline constexpr std::int32_t kNarrowRows = 16;
inline constexpr std::int32_t kWideRows = 64;

/// The plan on the device; borrowed.
struct AttentionWork {
  const AttentionSplit* splits = nullptr;
  const AttentionTile* tiles = nullptr;
  const SplitQuery* merged = nullptr;
  float* states = nullptr;  ///< SplitPlan::state_floats() of scratch, 16-byte aligned
  std::int32_t splits_count = 0;
  std::int32_t narrow_tiles = 0;
  std::int32_t wide_tiles = 0;
  std::int32_t merged_count = 0;
  std::int32_t states_count = 0;
  PieceSizes sizes = {};
};

/// How much of everything a plan has.
struct PlanCounts {
  std::int32_t splits = 0;
  std::int32_t narrow_tiles = 0;
  std::int32_t wide_tiles = 0;
  std::int32_t merged = 0;
  std::int32_t states = 0;

  friend bool operator==(const PlanCounts&, const PlanCounts&) = default;
};

struct SplitPlan {
  std::vector<AttentionSplit> splits;
  /// Tensor cores only. First those of up to kNarrowRows rows, then those of up to kWideRows; of
  /// each the longest first.
  std::vector<AttentionTile> tiles;
  std::vector<SplitQuery> merged;
  std::int32_t narrow_tiles = 0;
  std::int32_t states = 0;
  PieceSizes sizes = {};

  /// Floats of AttentionWork::states.
  std::size_t state_floats(std::int32_t H, std::int32_t D) const {
    return static_cast<std::size_t>(states) * static_cast<std::size_t>(H) *
           (static_cast<std::size_t>(D) + 2);
  }
  /// With the vectors where the kernels find them: at these addresses, or where they are.
  AttentionWork work(const AttentionSplit* splits_at, const AttentionTile* tiles_at,
                     const SplitQuery* merged_at, float* states_at) const;
  AttentionWork work(float* states_at) const {
    return work(splits.data(), tiles.data(), merged.data(), states_at);
  }
  PlanCounts counts() const;
  /// Fills up with entries that are none, at which blocks of threads leave: plans of the same
  /// counts start kernels of the same shape.
  void pad(const PlanCounts& to);
};

/// What a plan aims at; results have the same bits for all.
struct PlanLimits {
  std::int32_t tiles = 1024;         ///< enough for a GPU, counted for each kv head
  std::int32_t states = 1 << 14;     ///< kept below if runs can do it; each is H * (D + 2) floats
  std::int32_t shared_tokens = 128;  ///< a shorter common prefix is not worth a pass of its own
};

/// Whether tensor cores compute it; decided by the model's shapes, never by the batch. With one or
/// two heads per kv head their sixteen rows are not worth the copies to shared memory.
bool is_for_tensor_cores(const PagedAttentionArgs& args);

/// \param args  query_start, kv_len and block_table in host memory; other pointers are not read
SplitPlan plan_splits(const PagedAttentionArgs& args, const PlanLimits& limits = {});

/// Latent attention: pieces for each query token.
SplitPlan plan_splits(const PagedMlaArgs& args);

/// What latent attention has in common with the other: all but where the KV is.
PagedAttentionArgs as_attention(const PagedMlaArgs& args);

}  // namespace kvhive
