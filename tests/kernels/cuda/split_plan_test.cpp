#include "kernels/cuda/split_plan.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <set>
#include <vector>

namespace kvhive {
namespace {

/// A batch as the planner sees it, by default with 8 query heads on 2 kv heads. A sequence shares
/// its first `shared` tokens with sequence 0; its other blocks are its own.
struct Batch {
  struct Sequence {
    std::int32_t kv_len = 0, q_len = 1, shared = 0;
  };
  std::vector<Sequence> sequences;
  std::int32_t H = 8, window = 0, chunk = 0, S = 16;

  SplitPlan plan(const PlanLimits& limits = {}) const {
    std::vector<std::int32_t> query_start{0}, kv_len;
    PagedAttentionArgs args;
    for (const Sequence& sequence : sequences) {
      query_start.push_back(query_start.back() + sequence.q_len);
      kv_len.push_back(sequence.kv_len);
      args.M = std::max(args.M, (sequence.kv_len + S - 1) / S);
    }
    std::vector<BlockId> table;
    for (std::uint32_t i = 0; i < sequences.size() * static_cast<std::size_t>(args.M); ++i)
      table.push_back(BlockId{i});
    for (std::size_t b = 0; b < sequences.size(); ++b)
      std::copy_n(table.begin(), sequences[b].shared / S,
                  table.begin() + static_cast<std::ptrdiff_t>(b) * args.M);
    args.kv.G = 2;
    args.kv.S = S;
    args.kv.D = 128;
    args.q_dtype = args.kv.dtype = Dtype::bf16;
    args.H = H;
    args.B = static_cast<std::int32_t>(sequences.size());
    args.block_table = table.data();
    args.query_start = query_start.data();
    args.kv_len = kv_len.data();
    args.window = window;
    args.chunk = chunk;
    return plan_splits(args, limits);
  }
};

/// Expects that the splits of each query, in the order of its states, cover what it sees once; and
/// that every split is in one tile, which covers it and has not too many rows.
void expect_sound(const SplitPlan& plan, const Batch& batch) {
  std::vector<std::vector<AttentionSplit>> of_query;
  for (const Batch::Sequence& sequence : batch.sequences)
    of_query.resize(of_query.size() + static_cast<std::size_t>(sequence.q_len));
  for (const AttentionSplit& split : plan.splits)
    of_query[static_cast<std::size_t>(split.query)].push_back(split);
  std::set<std::int32_t> states;
  for (auto& splits : of_query) {
    ASSERT_FALSE(splits.empty());
    std::ranges::sort(splits, {}, &AttentionSplit::state);
    const std::int32_t position = splits[0].position;
    std::int32_t next = std::max(0, batch.window > 0 ? position + 1 - batch.window : 0);
    if (batch.chunk > 0) next = std::max(next, position / batch.chunk * batch.chunk);
    for (const AttentionSplit& split : splits) {
      EXPECT_EQ(split.begin, next);
      EXPECT_LT(split.begin, split.end);
      if (splits.size() == 1)
        EXPECT_EQ(split.state, -1);
      else
        EXPECT_TRUE(states.insert(split.state).second);
      // Only the first split of a query may be longer than a piece.
      const std::int32_t from = split.begin == splits[0].begin ? split.end - 1 : split.begin;
      EXPECT_LE(split.end, plan.sizes.border_after(from));
      EXPECT_TRUE(split.end > position || split.end == plan.sizes.border_after(from));
      next = split.end;
    }
    EXPECT_EQ(next, position + 1);
  }
  EXPECT_EQ(states.size(), static_cast<std::size_t>(plan.states));
  EXPECT_TRUE(states.empty() || *states.rbegin() == plan.states - 1);
  for (const SplitQuery& query : plan.merged) {
    const auto& splits = of_query[static_cast<std::size_t>(query.query)];
    EXPECT_EQ(splits.front().state, query.first_state);
    EXPECT_EQ(splits.size(), static_cast<std::size_t>(query.states));
  }

  const std::int32_t heads = batch.H / 2;
  std::vector<int> taken(plan.splits.size(), 0);
  for (std::size_t i = 0; i < plan.tiles.size(); ++i) {
    const AttentionTile& tile = plan.tiles[i];
    const bool is_narrow = static_cast<std::int32_t>(i) < plan.narrow_tiles;
    EXPECT_LE(tile.splits * heads, is_narrow ? kNarrowRows : std::max(kWideRows, heads));
    EXPECT_GT(tile.splits * heads, is_narrow ? 0 : kNarrowRows);
    for (std::int32_t j = 0; j < tile.splits; ++j) {
      const AttentionSplit& split = plan.splits[static_cast<std::size_t>(tile.first_split + j)];
      ++taken[static_cast<std::size_t>(tile.first_split + j)];
      EXPECT_LE(tile.begin, split.begin);
      EXPECT_GE(tile.end, split.end);
    }
  }
  const int times = heads > 2 ? 1 : 0;
  EXPECT_EQ(std::ranges::count(taken, times), static_cast<std::ptrdiff_t>(taken.size()));
}

/// Tokens of KV that the tiles read in all.
std::int64_t tokens_read(const SplitPlan& plan) {
  std::int64_t tokens = 0;
  for (const AttentionTile& tile : plan.tiles) tokens += tile.end - tile.begin;
  return tokens;
}

TEST(SplitPlan, CoversEveryVisibleTokenOnce) {
  for (const std::int32_t H : {4, 6, 8, 34, 200})
    for (const std::int32_t len : {1, 64, 65, 129, 2048, 5000, 70000})
      for (const std::int32_t q_len : {1, 2, 40})
        for (const std::int32_t window : {0, 1, 100, 4096})
          for (const std::int32_t chunk : {0, 48, 8192}) {
            const Batch batch{{{len, std::min(q_len, len)}}, H, window, chunk};
            expect_sound(batch.plan(), batch);
          }
}

TEST(SplitPlan, BordersDependOnPositionsAlone) {
  for (const std::int32_t reach : {0, 64, 4096, 100000}) {
    const PieceSizes sizes = piece_sizes(64, reach);
    std::int32_t last = 0;
    for (std::int32_t t = 0; t < 200000; ++t) {
      const std::int32_t border = sizes.border_after(t);
      EXPECT_TRUE(border == last || t == last) << t;
      EXPECT_EQ(border % 64, 0);
      EXPECT_LE(border - t, sizes.most);
      last = border;
    }
    EXPECT_TRUE(reach == 0 || sizes.most == 64 || sizes.most * 16 <= reach);
  }
}

TEST(SplitPlan, LongSequencesAreNotCutTooFine) {
  const auto pieces = [](std::int32_t len) {
    return Batch{{{len}}}.plan({.tiles = 1 << 30}).splits.size();
  };
  EXPECT_EQ(pieces(1024), 16u);
  EXPECT_EQ(pieces(8192), 64u);
  EXPECT_EQ(pieces(65536), 128u);
  EXPECT_EQ(pieces(131072), 192u);
}

TEST(SplitPlan, ShortSequencesAndLargeBatchesAreNotCut) {
  EXPECT_TRUE((Batch{{{64}}}.plan().merged.empty()));
  Batch many{std::vector<Batch::Sequence>(600, {1000})};
  EXPECT_TRUE(many.plan().merged.empty());
  many.sequences.push_back({64000});  // one long sequence is cut
  const SplitPlan plan = many.plan();
  expect_sound(plan, many);
  ASSERT_EQ(plan.merged.size(), 1u);
  EXPECT_EQ(plan.merged[0].query, 600);
}

TEST(SplitPlan, StatesAreLimited) {
  const Batch prefill{{{100000, 2000}}};
  EXPECT_LE(prefill.plan().states, PlanLimits{}.states);
  expect_sound(prefill.plan(), prefill);
  EXPECT_EQ(prefill.plan({.states = 0}).states, 0);
}

TEST(SplitPlan, PrefillSharesPassesBetweenItsTokens) {
  const Batch prefill{{{160, 32}}};
  EXPECT_EQ(tokens_read(prefill.plan()), 144 + 160);  // 16 tokens of 4 heads each
  Batch windowed{{{160, 32}}, 8, 20};
  EXPECT_EQ(tokens_read(windowed.plan()), 35 + 35);
}

TEST(SplitPlan, ACommonPrefixIsReadOnce) {
  Batch batch{{{1000}, {1001, 1, 960}, {1100, 1, 960}, {990, 1, 960}}};
  const SplitPlan plan = batch.plan();
  expect_sound(plan, batch);
  EXPECT_EQ(tokens_read(plan), 960 + 40 + 41 + 140 + 30);
  // More sequences than a tile holds: the prefix is read once for each tile.
  batch.sequences.resize(17, {1000, 1, 960});
  expect_sound(batch.plan(), batch);
  EXPECT_EQ(tokens_read(batch.plan()), 2 * 960 + 40 + 41 + 140 + 30 + 13 * 40);
}

TEST(SplitPlan, PrefixesMayBeSharedInPart) {
  // All share 256 tokens, some 640; 100 tokens are less than a piece; one has another first block.
  const Batch batch{{{700},
                     {900, 1, 640},
                     {800, 1, 256},
                     {700, 3, 256},
                     {300, 1, 96},
                     {700, 1, 0},
                     {650, 1, 640}}};
  for (const PlanLimits& limits :
       {PlanLimits{}, PlanLimits{.tiles = 1}, PlanLimits{.tiles = 1 << 30}}) {
    const SplitPlan plan = batch.plan(limits);
    expect_sound(plan, batch);
    EXPECT_EQ(tokens_read(plan), 256 + 384 + 60 + 260 + 544 + 444 + 300 + 700 + 10);
  }
}

TEST(SplitPlan, AShortCommonPrefixIsNotWorthAPass) {
  const Batch batch{{{1000}, {1000, 1, 64}}};
  EXPECT_EQ(tokens_read(batch.plan()), 2000);
  EXPECT_EQ(tokens_read(batch.plan({.shared_tokens = 64})), 2000 - 64);
  EXPECT_EQ(tokens_read(batch.plan({.shared_tokens = 1 << 30})), 2000);
}

TEST(SplitPlan, LargeBlocksMayHoldSeveralPieces) {
  const Batch batch{{{700}, {700, 1, 512}}, 8, 0, 0, 256};
  expect_sound(batch.plan(), batch);
  EXPECT_EQ(tokens_read(batch.plan()), 512 + 2 * 188);
}

TEST(SplitPlan, PaddingFollowsRealEntries) {
  const Batch batch{{{5000, 1}, {40, 30}, {200, 1}}};
  const SplitPlan plan = batch.plan({.tiles = 64});
  PlanCounts counts = plan.counts();
  ASSERT_GT(counts.narrow_tiles, 0);
  ASSERT_GT(counts.wide_tiles, 0);
  ASSERT_GT(counts.merged, 0);
  counts.splits += 1;
  counts.narrow_tiles += 2;
  counts.wide_tiles += 3;
  counts.merged += 4;
  counts.states += 5;
  SplitPlan padded = plan;
  padded.pad(counts);
  EXPECT_EQ(padded.counts(), counts);
  EXPECT_EQ(padded.splits.back().begin, padded.splits.back().end);
  EXPECT_EQ(padded.merged.back().states, 0);
  std::vector<std::int32_t> sizes, want;
  for (const AttentionTile& tile : padded.tiles) sizes.push_back(tile.splits);
  for (const AttentionTile& tile : plan.tiles) want.push_back(tile.splits);
  want.insert(want.begin() + plan.narrow_tiles, 2, 0);
  want.insert(want.end(), 3, 0);
  EXPECT_EQ(sizes, want);
}

}  // namespace
}  // namespace kvhive
