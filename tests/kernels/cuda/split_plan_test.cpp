#include "kernels/cuda/split_plan.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>

namespace kvhive {
namespace {

SplitPlan plan_one(std::int32_t kv_len, std::int32_t q_len = 1, std::int32_t window = 0,
                   std::int32_t chunk = 0) {
  const std::int32_t start[] = {0, q_len};
  return plan_splits(start, {&kv_len, 1}, window, chunk);
}

TEST(SplitPlan, CoversWhatIsVisibleOnce) {
  for (const std::int32_t len : {1, 127, 128, 129, 1023, 5000, 8192, 8193, 70000, 200000})
    for (const std::int32_t window : {0, 1, 100, 4096})
      for (const std::int32_t chunk : {0, 48, 8192}) {
        std::int32_t next = std::max(0, window > 0 ? len - window : 0);
        if (chunk > 0) next = std::max(next, (len - 1) / chunk * chunk);
        for (const AttentionSplit& split : plan_one(len, 1, window, chunk).splits) {
          EXPECT_EQ(split.begin, next);
          EXPECT_LT(split.begin, split.end);
          EXPECT_LE(split.end - split.begin, kMaxSplitTokens);
          next = split.end;
        }
        EXPECT_EQ(next, len);
      }
}

TEST(SplitPlan, BordersFollowFromThePositionAlone) {
  const std::int32_t start[] = {0, 3, 3, 4}, lens[] = {700, 0, 699};
  const SplitPlan plan = plan_splits(start, lens, 0, 0);
  std::map<std::int32_t, std::vector<std::pair<int, int>>> of_query;
  for (const AttentionSplit& split : plan.splits)
    of_query[split.query].emplace_back(split.begin, split.end);
  EXPECT_EQ(of_query.size(), 4u);
  EXPECT_EQ(of_query[1], of_query[3]);  // both at position 698
  for (const AttentionSplit& split : plan_one(100000).splits)
    EXPECT_EQ(split.begin % split_tokens_at(99999), 0);
}

TEST(SplitPlan, OnlyQueriesInPiecesHaveStates) {
  EXPECT_TRUE(plan_one(128).merged.empty());
  EXPECT_EQ(plan_one(128).states, 0);
  EXPECT_EQ(plan_one(128).splits.front().state, -1);
  const SplitPlan plan = plan_one(300, 2);  // positions 298 and 299: three pieces each
  ASSERT_EQ(plan.merged.size(), 2u);
  EXPECT_EQ(plan.states, 6);
  EXPECT_EQ(plan.merged[1].first_state, 3);
  EXPECT_EQ(plan.merged[1].states, 3);
  for (std::int32_t i = 0; i < 6; ++i) EXPECT_EQ(plan.splits[static_cast<std::size_t>(i)].state, i);
  EXPECT_EQ(plan.state_floats(4, 128), 6u * 4 * 130);
}

TEST(SplitPlan, LongSequencesAreNotCutTooFine) {
  EXPECT_EQ(plan_one(8192).splits.size(), 64u);
  EXPECT_EQ(plan_one(16384).splits.size(), 64u);
  EXPECT_EQ(plan_one(131072).splits.size(), 128u);
}

}  // namespace
}  // namespace kvhive
