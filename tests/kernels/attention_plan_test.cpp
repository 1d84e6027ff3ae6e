#include "kernels/cpu/plan/attention_plan.hpp"

#include <gtest/gtest.h>

#include <map>

namespace kvhive {
namespace {

/// The properties of a batch that a plan depends on.
struct Batch {
  explicit Batch(std::vector<std::pair<std::int32_t, std::int32_t>> kv_and_q_lens,
                 std::int32_t window = 0) {
    for (const auto& [kv, q] : kv_and_q_lens) {
      kv_len.push_back(kv);
      query_start.push_back(query_start.back() + q);
    }
    args.kv_len = kv_len.data();
    args.query_start = query_start.data();
    args.B = static_cast<std::int32_t>(kv_len.size());
    args.H = 32;
    args.kv.G = 8;
    args.window = window;
  }

  std::vector<std::int32_t> query_start{0};
  std::vector<std::int32_t> kv_len;
  PagedAttentionArgs args;
};

void expect_every_span_once(const AttentionPlan& plan) {
  std::map<std::pair<std::size_t, std::int32_t>, int> times;
  for (const TileSpans& item : plan.items)
    for (std::int32_t span = item.first_span; span < item.end_span; ++span)
      ++times[{item.tile, span}];
  std::size_t expected = 0;
  for (std::size_t tile = 0; tile < plan.tiles.size(); ++tile)
    for (std::int32_t span = plan.tiles[tile].first_span(); span < plan.tiles[tile].end_span();
         ++span, ++expected)
      EXPECT_EQ((times[{tile, span}]), 1);
  EXPECT_EQ(times.size(), expected);
}

TEST(AttentionPlan, ComputesEverySpanOfEveryTileOnce) {
  const Batch batch({{20000, 1}, {0, 0}, {700, 700}, {513, 100}, {3, 3}});
  for (const int threads : {1, 2, 7, 64})
    expect_every_span_once(plan_attention(batch.args, threads));
}

TEST(AttentionPlan, CoversEveryQueryOfEveryHeadOnce) {
  const Batch batch({{20000, 1}, {0, 0}, {700, 700}, {513, 100}});
  std::map<std::pair<std::int32_t, std::int32_t>, int> times;
  for (const QueryTile& tile : plan_attention(batch.args, 2).tiles)
    for (std::int32_t i = 0; i < tile.queries; ++i) ++times[{tile.g, tile.first_query + i}];
  EXPECT_EQ(times.size(), 8u * 801u);
  for (const auto& [query, count] : times) EXPECT_EQ(count, 1);
}

TEST(AttentionPlan, KeepsManyThreadsBusyWithOneLongSequence) {
  const Batch batch({{32768, 1}});
  const AttentionPlan plan = plan_attention(batch.args, 64);
  EXPECT_GE(plan.items.size(), 128u);
  EXPECT_EQ(plan.split_tiles.size(), 8u);
  EXPECT_EQ(plan.stored_states, 8 * 4 * 32768 / kSpanTokens);
}

TEST(AttentionPlan, SplitsOnlyTheSequenceThatWouldKeepOthersWaiting) {
  std::vector<std::pair<std::int32_t, std::int32_t>> lens(63, {512, 1});
  lens.push_back({65536, 1});
  const Batch batch(lens);
  const AttentionPlan plan = plan_attention(batch.args, 16);
  ASSERT_EQ(plan.split_tiles.size(), 8u);
  for (const std::size_t tile : plan.split_tiles) EXPECT_EQ(plan.tiles[tile].b, 63);
}

TEST(AttentionPlan, DoesNotSplitForOneThread) {
  const Batch batch({{32768, 1}, {5, 5}});
  EXPECT_TRUE(plan_attention(batch.args, 1).split_tiles.empty());
}

TEST(AttentionPlan, SkipsSpansBeforeTheWindow) {
  const Batch batch({{32768, 1}}, 600);
  const AttentionPlan plan = plan_attention(batch.args, 1);
  for (const QueryTile& tile : plan.tiles) EXPECT_EQ(tile.first_span(), (32768 - 600) / 512);
}

}  // namespace
}  // namespace kvhive
