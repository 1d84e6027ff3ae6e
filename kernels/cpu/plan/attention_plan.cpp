#include "kernels/cpu/plan/attention_plan.hpp"

namespace kvhive {
namespace {

/// Several items per thread even out differences between items and between cores.
constexpr std::int64_t kItemsPerThread = 4;
/// Loading a token's K and V costs about as much as the arithmetic of this many rows.
constexpr std::int64_t kFetchRows = 8;

std::int64_t work_of(const QueryTile& tile, std::int32_t group) {
  return (std::int64_t{tile.queries} * group + kFetchRows) * (tile.end_span() - tile.first_span());
}

void add_tiles(const PagedAttentionArgs& args, std::int32_t b, std::int32_t tile_queries,
               std::vector<QueryTile>& tiles) {
  const std::int32_t begin = args.query_start[b];
  const std::int32_t end = args.query_start[b + 1];
  for (std::int32_t g = 0; g < args.kv.G; ++g)
    for (std::int32_t first = begin; first < end; first += tile_queries) {
      const std::int32_t queries = std::min(tile_queries, end - first);
      const std::int32_t position = args.kv_len[b] - (end - first);
      const KvRange visible{visible_range(position, args.window, args.chunk).begin,
                            position + queries};
      tiles.push_back({b, g, first, queries, position, visible});
    }
}

void add_items(AttentionPlan& plan, std::size_t index, std::int64_t target_work,
               std::int32_t group) {
  QueryTile& tile = plan.tiles[index];
  const std::int64_t spans = tile.end_span() - tile.first_span();
  const std::int64_t pieces =
      std::min(spans, (work_of(tile, group) + target_work - 1) / target_work);
  for (std::int64_t i = 0; i < pieces; ++i)
    plan.items.push_back({index, tile.first_span() + static_cast<std::int32_t>(spans * i / pieces),
                          tile.first_span() + static_cast<std::int32_t>(spans * (i + 1) / pieces)});
  if (pieces == 1) return;
  tile.first_state = plan.stored_states;
  plan.stored_states += spans * tile.queries * group;
  plan.split_tiles.push_back(index);
}

}  // namespace

AttentionPlan plan_attention(const PagedAttentionArgs& args, int threads) {
  const std::int32_t group = args.H / args.kv.G;
  const std::int32_t tile_queries = std::max(1, kTileRows / group);

  AttentionPlan plan;
  for (std::int32_t b = 0; b < args.B; ++b) add_tiles(args, b, tile_queries, plan.tiles);

  std::int64_t total_work = 0;
  for (const QueryTile& tile : plan.tiles) {
    total_work += work_of(tile, group);
    plan.max_tile_rows = std::max(plan.max_tile_rows, tile.queries * group);
  }
  const std::int64_t target_work =
      threads == 1 ? total_work + 1
                   : std::max<std::int64_t>(1, total_work / (threads * kItemsPerThread));
  for (std::size_t i = 0; i < plan.tiles.size(); ++i) add_items(plan, i, target_work, group);
  return plan;
}

}  // namespace kvhive
