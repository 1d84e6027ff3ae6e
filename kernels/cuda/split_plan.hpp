#pragma once
// Cuts attention into work for the GPU's blocks of threads. Runs on the host.
//
// The KV that a query token sees is cut into pieces at borders that depend on positions alone
// (piece_sizes.hpp). Each piece has a softmax state, and a token's states are folded in the order
// of positions, whichever kernel does it. So a token's bits do not depend on the other tokens of
// the batch, and the plan may use the whole batch:
//
// - Query tokens whose block tables name the same blocks for a piece share one pass over it: tokens
//   of one sequence in prefill, and tokens of different sequences with a common prefix (a cascade,
//   at any depth and for any part of the batch).
// - If the GPU has enough work otherwise, a token's leading pieces are one run: one tile goes
//   through them and folds their states on the way. The states of later pieces go to scratch.
//
// Source: Flash-Decoding; the split of plan and run of FlashInfer (scheduler.cuh) and its cascade
// (Ye et al., 2024); Hydragen (Juravsky et al., 2024).

#include <cstdint>
#include <vector>

#include "kernels/cuda/piece_sizes.hpp"
#include "kernels/paged_attention.hpp"
#include "kernels/paged_mla.hpp"

namespace kvhive {

/// The part of a piece or of a run that one query token sees: `query` against positions
/// begin..end-1 of its sequence b.
struct AttentionSplit {
  std::int32_t b = 0;
  std::int32_t query = 0;     ///< 0..T-1
  std::int32_t position = 0;  ///< of the query token in its sequence
  std::int32_t begin = 0;
  std::int32_t end = 0;     ///< == begin: padding, not a split
  std::int32_t state = -1;  ///< scratch state that its (acc, max, sum) is written to; -1: the token
                            ///< has no other split, the result goes to out
};

/// Splits that share one pass over positions begin..end-1, read through the first split's row of
/// the block table. Each split sees a part of these positions.
struct AttentionTile {
  std::int32_t first_split = 0;
  std::int32_t splits = 0;  ///< 0: padding, not a tile
  std::int32_t begin = 0;
  std::int32_t end = 0;
};

/// A query token with several states, which are folded in order.
struct SplitQuery {
  std::int32_t query = 0;
  std::int32_t first_state = 0;
  std::int32_t states = 0;  ///< 0: padding, not a query
};

/// A row of a tile is a query token with one head of the kv head.
inline constexpr std::int32_t kNarrowRows = 16;
inline constexpr std::int32_t kWideRows = 64;

/// The plan in device memory; borrowed.
struct AttentionWork {
  const AttentionSplit* splits = nullptr;
  const AttentionTile* tiles = nullptr;
  const SplitQuery* merged = nullptr;
  float* states = nullptr;  ///< scratch of SplitPlan::state_floats() floats, 16-byte aligned
  std::int32_t splits_count = 0;
  std::int32_t narrow_tiles = 0;
  std::int32_t wide_tiles = 0;
  std::int32_t merged_count = 0;
  std::int32_t states_count = 0;
  PieceSizes sizes = {};
};

/// The sizes of a plan.
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
  /// For tensor cores only. First the tiles of at most kNarrowRows rows, then those of at most
  /// kWideRows; among each the longest first.
  std::vector<AttentionTile> tiles;
  std::vector<SplitQuery> merged;
  std::int32_t narrow_tiles = 0;
  std::int32_t states = 0;
  PieceSizes sizes = {};

  /// Size of AttentionWork::states in floats.
  std::size_t state_floats(std::int32_t H, std::int32_t D) const {
    return static_cast<std::size_t>(states) * static_cast<std::size_t>(H) *
           (static_cast<std::size_t>(D) + 2);
  }
  /// The plan with its vectors at these (device) addresses; without arguments at the host's.
  AttentionWork work(const AttentionSplit* splits_at, const AttentionTile* tiles_at,
                     const SplitQuery* merged_at, float* states_at) const;
  AttentionWork work(float* states_at) const {
    return work(splits.data(), tiles.data(), merged.data(), states_at);
  }
  PlanCounts counts() const;
  /// Appends padding, which kernels skip at once, until the plan has these counts: plans with the
  /// same counts start kernels with the same grids.
  void pad(const PlanCounts& to);
};

/// Goals of a plan. Results have the same bits for all values.
struct PlanLimits {
  std::int32_t tiles = 1024;  ///< enough to fill a GPU; counted for each kv head
  std::int32_t states =
      1 << 14;  ///< not exceeded if longer runs avoid it; a state is H * (D + 2) floats
  std::int32_t shared_tokens = 128;  ///< a shorter common prefix is not worth a separate pass
};

/// Whether the batch is computed on tensor cores. Depends on the model's shapes only, never on the
/// batch. With one or two query heads per kv head, filling 16 rows is not worth the copies to
/// shared memory.
bool is_for_tensor_cores(const PagedAttentionArgs& args);

/// \param args query_start, kv_len and block_table are in host memory; other pointers are not read
SplitPlan plan_splits(const PagedAttentionArgs& args, const PlanLimits& limits = {});

/// For latent attention: query tokens share nothing.
SplitPlan plan_splits(const PagedMlaArgs& args);

/// The same call as PagedAttentionArgs, without the cache.
PagedAttentionArgs as_attention(const PagedMlaArgs& args);

}  // namespace kvhive
