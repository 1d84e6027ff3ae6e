#include "actors/step_batch.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace kvhive {
namespace {

using ::testing::ElementsAre;

std::vector<BlockId> blocks(std::initializer_list<std::uint32_t> numbers) {
  std::vector<BlockId> ids;
  for (const std::uint32_t number : numbers) ids.push_back(BlockId{number});
  return ids;
}

/// Two sequences in two groups: one of 6 tokens of which 4 are computed, and whose first block has
/// left the second group's window; one of 2 tokens.
StepPlan plan_of_two() {
  StepPlan plan;
  plan.work.push_back({SeqId{1}, 4, {32, 33}, blocks({7, 8, 0, 9}), true, {}, 0});
  plan.work.push_back({SeqId{2}, 0, {50, 51}, blocks({3, 4}), false, {}, 0});
  return plan;
}

TEST(StepBatch, HasATableAndSlotsForEachGroup) {
  const StepPlan plan = plan_of_two();
  const StepBatch batch(plan, 4, 2);
  const ForwardBatch view = batch.view();
  EXPECT_EQ(view.max_blocks, 2);
  EXPECT_THAT(view.query_start, ElementsAre(0, 2, 4));
  EXPECT_THAT(view.kv_len, ElementsAre(6, 2));
  EXPECT_THAT(view.positions, ElementsAre(4, 5, 0, 1));
  EXPECT_THAT(view.logit_rows, ElementsAre(1));
  const auto full = view.table_of(GroupId{0}), windowed = view.table_of(GroupId{1});
  EXPECT_EQ(std::vector(full.begin(), full.end()), blocks({7, 8, 3, 0}));
  EXPECT_EQ(std::vector(windowed.begin(), windowed.end()), blocks({0, 9, 4, 0}));
  EXPECT_THAT(view.slots_of(GroupId{0}), ElementsAre(32, 33, 12, 13));
  EXPECT_THAT(view.slots_of(GroupId{1}), ElementsAre(36, 37, 16, 17));
}

TEST(StepBatch, LogitsAreWantedBehindEachDraftToo) {
  StepPlan plan = plan_of_two();
  plan.work[0].drafts = 1;
  const StepBatch batch(plan, 4, 2);
  EXPECT_THAT(batch.view().logit_rows, ElementsAre(0, 1));
  plan.work[1].samples = true;
  EXPECT_THAT(StepBatch(plan, 4, 2).view().logit_rows, ElementsAre(0, 1, 3));
}

TEST(StepBatch, NamesAdaptersOnlyWhereThereAreAny) {
  StepPlan plan = plan_of_two();
  EXPECT_TRUE(StepBatch(plan, 4, 2).view().adapters.empty());
  plan.work[1].adapter = 5;
  const StepBatch batch(plan, 4, 2);
  EXPECT_THAT(batch.view().adapters, ElementsAre(-1, 5));
}

TEST(StepBatch, OfOneGroupIsAsWithoutGroups) {
  StepPlan plan;
  plan.work.push_back({SeqId{1}, 0, {30, 31}, blocks({7}), true, {}, 0});
  const StepBatch batch(plan, 4);
  EXPECT_THAT(batch.view().slot_mapping, ElementsAre(28, 29));
  EXPECT_EQ(batch.view().block_table.size(), 1u);
}

TEST(StepBatchDeath, ATableThatGroupsCannotShareIsAMistake) {
  StepPlan plan;
  plan.work.push_back({SeqId{1}, 0, {30}, blocks({7, 8, 9}), true, {}, 0});
  EXPECT_DEATH(StepBatch(plan, 4, 2), "");
}

}  // namespace
}  // namespace kvhive
