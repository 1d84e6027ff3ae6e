#pragma once
// Cuts one call of paged_attention_cpu or paged_mla_cpu into work items for threads. Private to
// them; no SIMD, so that it can be read and tested alone.
//
// Why a result's bits do not depend on the plan: the KV that a query row sees is cut into spans,
// and a span into chunks, at multiples of constants counted from position 0. Inside a span, one
// state (max, sum, acc) goes through the chunks in order; then the states of the spans are merged
// in order. The plan only decides which thread computes which spans.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/paged_attention.hpp"

namespace kvhive {

inline constexpr std::int32_t kChunkTokens =
    128;  ///< of one softmax update; a multiple of every vector length
inline constexpr std::int32_t kSpanTokens =
    512;  ///< the least KV that is given to a thread; whole chunks
inline constexpr std::int32_t kTileRows = 32;  ///< query rows that share one pass over the KV

/// KV positions begin..end-1.
struct KvRange {
  std::int32_t begin = 0;
  std::int32_t end = 0;
};

/// The positions that a query token at `position` attends to.
inline KvRange visible_range(std::int32_t position, std::int32_t window, std::int32_t chunk) {
  const std::int32_t in_window = window > 0 ? std::max(0, position + 1 - window) : 0;
  const std::int32_t in_chunk = chunk > 0 ? position / chunk * chunk : 0;
  return {std::max(in_window, in_chunk), position + 1};
}

inline KvRange intersection(KvRange a, KvRange b) {
  return {std::max(a.begin, b.begin), std::min(a.end, b.end)};
}

/// The part of `range` inside the chunk that starts at `chunk_begin`, counted from the chunk's
/// start; end <= begin if there is none.
inline KvRange within_chunk(KvRange range, std::int32_t chunk_begin) {
  return intersection({range.begin - chunk_begin, range.end - chunk_begin}, {0, kChunkTokens});
}

/// Consecutive query tokens of one sequence, with all query heads of one kv head.
struct QueryTile {
  std::int32_t b;
  std::int32_t g;
  std::int32_t first_query;       ///< index into the call's T query tokens
  std::int32_t queries;           ///< tokens; each has H/G rows
  std::int32_t first_position;    ///< of first_query in its sequence
  KvRange visible;                ///< positions that at least one of its rows sees
  std::int64_t first_state = -1;  ///< index of its spans' stored states; -1: the tile is not split

  bool is_split() const { return first_state >= 0; }
  std::size_t rows(std::int32_t group) const {
    return static_cast<std::size_t>(queries) * static_cast<std::size_t>(group);
  }
  std::int32_t first_span() const { return visible.begin / kSpanTokens; }
  std::int32_t end_span() const { return (visible.end + kSpanTokens - 1) / kSpanTokens; }
};

/// One work item: spans first_span..end_span-1 of one tile.
struct TileSpans {
  std::size_t tile = 0;
  std::int32_t first_span = 0;
  std::int32_t end_span = 0;
};

struct AttentionPlan {
  std::vector<QueryTile> tiles;
  std::vector<TileSpans> items;
  std::vector<std::size_t> split_tiles;  ///< merged when all items are done
  std::int32_t max_tile_rows = 0;
  std::int64_t stored_states = 0;  ///< sum over the split tiles of rows times spans
};

/// Splits tiles over spans only where that is needed to keep all threads busy. Reads of the
/// arguments only the batch's shape, H, G, window and chunk.
AttentionPlan plan_attention(const PagedAttentionArgs& args, int threads);

}  // namespace kvhive
