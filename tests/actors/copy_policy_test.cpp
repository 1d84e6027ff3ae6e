#include "actors/block_manager/copy_policy.hpp"

#include <gtest/gtest.h>

namespace kvhive::testing {
namespace {

constexpr std::uint32_t kSize = 16;  // tokens per block

class CopyPolicyTest : public ::testing::Test {
 protected:
  CopyPolicy policy_{kSize};
};

TEST_F(CopyPolicyTest, CopiesAreTriedBeforeAnyMeasurement) {
  EXPECT_TRUE(policy_.demotion_pays());
  EXPECT_TRUE(policy_.promotion_pays());
  policy_.set(1e9, 0);
  EXPECT_TRUE(policy_.demotion_pays());
  policy_.set(0, 1e-9);
  EXPECT_TRUE(policy_.promotion_pays());
}

TEST_F(CopyPolicyTest, ACopyPaysIfItCostsNoMoreThanTheBlocksTokens) {
  policy_.set(16, 1);
  EXPECT_TRUE(policy_.promotion_pays());
  policy_.set(17, 1);
  EXPECT_FALSE(policy_.promotion_pays());
}

TEST_F(CopyPolicyTest, ADemotionCountsAsTwoCopies) {
  policy_.set(8, 1);
  EXPECT_TRUE(policy_.demotion_pays());
  policy_.set(9, 1);
  EXPECT_FALSE(policy_.demotion_pays());
}

/// Blocks of several groups, and a last one that is not full.
TEST_F(CopyPolicyTest, ASwapPaysIfCopiesThereAndBackCostNoMoreThanTheTokens) {
  EXPECT_TRUE(policy_.swap_pays(1000, 1)) << "not measured yet";
  policy_.set(4, 1);
  EXPECT_TRUE(policy_.swap_pays(5, 40));
  EXPECT_FALSE(policy_.swap_pays(5, 39));
}

TEST_F(CopyPolicyTest, LearnsFromStepsThatCopyAndThatComputePrompts) {
  policy_.learn(4, 100, 2, {.copying = 8, .computing = 50});
  EXPECT_EQ(policy_.block_copy(), 2);
  EXPECT_EQ(policy_.token(), 0.5);
  policy_.learn(0, 2, 2, {.copying = 1, .computing = 50});  // one token per sequence: a decode step
  policy_.learn(0, 0, 0, {});                               // a step that was not timed
  EXPECT_EQ(policy_.block_copy(), 2);
  EXPECT_EQ(policy_.token(), 0.5);
  policy_.learn(1, 100, 1, {.copying = 10, .computing = 250});
  EXPECT_EQ(policy_.block_copy(), 3) << "the average moves by an eighth of the difference";
  EXPECT_EQ(policy_.token(), 0.75);
}

TEST_F(CopyPolicyTest, AnOutlierIsClamped) {
  policy_.set(1, 1);
  policy_.learn(1, 100, 1, {.copying = 1e6, .computing = 1e6});
  EXPECT_EQ(policy_.block_copy(), 1 + 7.0 / 8);
  EXPECT_EQ(policy_.token(), 1 + 7.0 / 8);
}

TEST_F(CopyPolicyTest, ARefusalIsNotForEver) {
  policy_.set(1000, 1);  // as if the process was stopped during a copy
  int refusals = 0;
  while (!policy_.promotion_pays()) ASSERT_LT(++refusals, 1000);
  EXPECT_GT(refusals, 100);
  policy_.learn(1, 0, 0, {.copying = 1000, .computing = 0});
  EXPECT_FALSE(policy_.promotion_pays()) << "a new measurement shows the same cost";
}

}  // namespace
}  // namespace kvhive::testing
