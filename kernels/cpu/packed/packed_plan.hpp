#pragma once
// Cuts a call of attention over PageLayout::packed into tiles, and tiles into work items. The cuts
// are those of attention_plan.hpp: they depend on each sequence alone.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/cpu/plan/attention_plan.hpp"
#include "kernels/paged_attention.hpp"

namespace kvhive {

/// Consecutive query tokens of one sequence, with all query heads of some kv heads. Rows are
/// ordered by kv head, then token, then query head.
struct PackedTile {
  std::int32_t b = 0;
  std::int32_t first_head = 0;  ///< kv heads
  std::int32_t heads = 0;
  std::int32_t first_query = 0;  ///< index into the call's T query tokens
  std::int32_t queries = 0;
  std::int32_t first_position = 0;  ///< of first_query in its sequence
  KvRange visible;                  ///< positions that at least one of its rows sees
  std::int64_t first_state = -1;  ///< index of its spans' stored states; -1: the tile is not split

  bool is_split() const { return first_state >= 0; }
};

struct PackedPlan {
  std::vector<PackedTile> tiles;
  std::vector<TileSpans> items;
  std::vector<std::size_t> split_tiles;  ///< merged when all items are done
  std::int32_t max_rows = 0;             ///< of a tile
  std::int32_t max_head_rows = 0;        ///< of one kv head of a tile
  std::int64_t stored_states = 0;        ///< sum over the split tiles of rows times spans
};

/// \param most_head_rows  query rows of one kv head that share a pass over its KV
PackedPlan plan_packed_attention(const PagedAttentionArgs& args, int threads,
                                 std::int32_t most_head_rows);

}  // namespace kvhive
