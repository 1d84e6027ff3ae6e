#include "kernels/cpu/packed/packed_plan.hpp"

#include <algorithm>

#include "base/check.hpp"
#include "kernels/cpu/plan/attention_state.hpp"

namespace kvhive {
namespace {

/// Several items per thread even out differences between items and between cores.
constexpr std::int64_t kItemsPerThread = 4;
/// Query rows that share a pass over the KV of several heads.
constexpr std::int32_t kRowsOfHeads = 128;
/// Loading a token's K and V costs about as much as the arithmetic of this many rows.
constexpr std::int64_t kFetchRows = 16;

std::int32_t ceil_div(std::int64_t a, std::int64_t b) {
  return static_cast<std::int32_t>((a + b - 1) / b);
}

std::int32_t spans_of(const PackedTile& tile) {
  return ceil_div(tile.visible.end, kSpanTokens) - tile.visible.begin / kSpanTokens;
}

std::int64_t work_of(const PackedTile& tile, std::int32_t group) {
  return tile.heads * (std::int64_t{tile.queries} * group + kFetchRows) * spans_of(tile);
}

/// Adds all tiles of a sequence; a tile has several kv heads if the query tokens are few.
void add_tiles(const PagedAttentionArgs& args, std::int32_t b, std::int32_t most_head_rows,
               std::vector<PackedTile>& tiles) {
  const std::int32_t begin = args.query_start[b];
  const std::int32_t end = args.query_start[b + 1];
  KV_CHECK(begin <= end && end - begin <= args.kv_len[b], b, begin, end, args.kv_len[b]);
  const std::int32_t group = args.H / args.kv.G;
  const std::int32_t tile_queries = std::max(1, most_head_rows / group);
  const std::int32_t tile_rows = std::min(tile_queries, std::max(1, end - begin)) * group;
  const std::int32_t tile_heads = std::clamp(kRowsOfHeads / tile_rows, 1, args.kv.G);
  for (std::int32_t g = 0; g < args.kv.G; g += tile_heads) {
    const std::int32_t heads = std::min(tile_heads, args.kv.G - g);
    for (std::int32_t first = begin; first < end; first += tile_queries) {
      const std::int32_t queries = std::min(tile_queries, end - first);
      const std::int32_t position = args.kv_len[b] - (end - first);
      const KvRange visible{visible_range(position, args.window, args.chunk).begin,
                            position + queries};
      tiles.push_back({b, g, heads, first, queries, position, visible});
    }
  }
}

/// Cuts a tile into items of about `target_work`: first over spans, then over kv heads.
void add_items(PackedPlan& plan, PackedTile whole, std::int64_t target_work, std::int32_t group) {
  const std::int32_t spans = spans_of(whole);
  const std::int32_t wanted = ceil_div(work_of(whole, group), target_work);
  const std::int32_t pieces = std::min(spans, wanted);
  const std::int32_t parts = std::min(whole.heads, ceil_div(wanted, spans));
  for (std::int32_t part = 0; part < parts; ++part) {
    PackedTile tile = whole;
    tile.first_head = whole.first_head + whole.heads * part / parts;
    tile.heads = whole.first_head + whole.heads * (part + 1) / parts - tile.first_head;
    const std::int32_t first = tile.visible.begin / kSpanTokens;
    for (std::int32_t i = 0; i < pieces; ++i)
      plan.items.push_back(
          {plan.tiles.size(), first + spans * i / pieces, first + spans * (i + 1) / pieces});
    if (pieces > 1) {
      tile.first_state = plan.stored_states;
      plan.stored_states += std::int64_t{spans} * tile.heads * tile.queries * group;
      plan.split_tiles.push_back(plan.tiles.size());
    }
    plan.max_head_rows = std::max(plan.max_head_rows, tile.queries * group);
    plan.max_rows = std::max(plan.max_rows, tile.heads * tile.queries * group);
    plan.tiles.push_back(tile);
  }
}

}  // namespace

PackedPlan plan_packed_attention(const PagedAttentionArgs& args, int threads,
                                 std::int32_t most_head_rows) {
  KV_CHECK(args.kv.G > 0 && args.H % args.kv.G == 0, args.H, args.kv.G);
  const std::int32_t group = args.H / args.kv.G;
  std::vector<PackedTile> tiles;
  for (std::int32_t b = 0; b < args.B; ++b) add_tiles(args, b, most_head_rows, tiles);

  std::int64_t total_work = 0;
  for (const PackedTile& tile : tiles) total_work += work_of(tile, group);
  const std::int64_t target_work =
      threads == 1 ? total_work + 1
                   : std::max<std::int64_t>(1, total_work / (threads * kItemsPerThread));
  PackedPlan plan;
  for (const PackedTile& tile : tiles) add_items(plan, tile, target_work, group);
  return plan;
}

}  // namespace kvhive
