#include "actors/speculation/guess_policy.hpp"

#include <gtest/gtest.h>

namespace kvhive::testing {
namespace {

/// Steps of 1 to `most` rows, each of which takes 1 ms and `of_a_row` of it more for each row.
GuessPolicy measured(double of_a_row, std::size_t most = 8) {
  GuessPolicy policy;
  for (std::size_t i = 0; i < 100; ++i) {
    const std::size_t rows = i % most + 1;
    policy.learn(rows, 1e-3 * (1 + of_a_row * static_cast<double>(rows)));
  }
  return policy;
}

TEST(GuessPolicy, GuessesAllUntilStepsAreMeasured) {
  EXPECT_EQ(GuessPolicy().worth(0.1, 64, 5), 5u);
  GuessPolicy policy;
  for (int i = 0; i < 100; ++i) policy.learn(4, 1e-3);
  EXPECT_EQ(policy.worth(0.1, 4, 5), 5u) << "steps of one size do not tell what a row costs";
  policy.learn(0, 1);
  policy.learn(100, 0);
  EXPECT_EQ(policy.worth(0.1, 4, 5), 5u);
}

TEST(GuessPolicy, KnowsWhichPartOfAStepItsRowsTake) {
  EXPECT_NEAR(measured(0.1).share_of_rows(1), 0.1 / 1.1, 1e-6);
  EXPECT_NEAR(measured(0.1).share_of_rows(90), 0.9, 1e-6);
  EXPECT_NEAR(measured(0).share_of_rows(90), 0, 1e-6);
  EXPECT_NEAR(measured(1e9).share_of_rows(1), 1, 1e-6);
}

TEST(GuessPolicy, AGuessMustBeRightMoreOftenThanItsRowCosts) {
  const GuessPolicy policy = measured(0.1);  // of 10 rows, a half of the step
  EXPECT_EQ(policy.worth(0.49, 10, 5), 0u);
  EXPECT_EQ(policy.worth(0.51, 10, 5), 1u);
  EXPECT_EQ(policy.worth(0.8, 10, 5), 3u) << "each is right only if those before it are";
  EXPECT_EQ(policy.worth(1, 10, 5), 5u);
  EXPECT_EQ(policy.worth(0.51, 1, 5), 3u) << "a small batch has rows to spare";
}

TEST(GuessPolicy, FollowsAMachineThatChanges) {
  GuessPolicy policy = measured(0.01);
  for (std::size_t i = 0; i < 1000; ++i) {
    const std::size_t rows = i % 8 + 1;
    policy.learn(rows, 1e-3 * (1 + static_cast<double>(rows)));
  }
  EXPECT_NEAR(policy.share_of_rows(1), 0.5, 1e-3);
}

TEST(HitRate, RisesWithRightGuessesAndFallsWithWrongOnes) {
  HitRate right, wrong;
  for (int i = 0; i < 20; ++i) right.learn(4, 4);
  for (int i = 0; i < 20; ++i) wrong.learn(4, 0);
  EXPECT_GT(right.value(), 0.99);
  EXPECT_LT(wrong.value(), 0.06) << "guesses behind a wrong one say nothing";
  EXPECT_GT(wrong.value(), 0.03);
}

TEST(HitRate, OfHalfRightGuessesIsAHalf) {
  HitRate rate;
  for (int i = 0; i < 100; ++i) rate.learn(2, 1);
  EXPECT_NEAR(rate.value(), 0.5, 0.1);
}

TEST(HitRate, ComesToBeTriedAgain) {
  HitRate rate;
  for (int i = 0; i < 50; ++i) rate.learn(4, 0);
  ASSERT_LT(rate.value(), 0.01);
  for (int i = 0; i < 64; ++i) rate.rest();
  EXPECT_GT(rate.value(), 0.4);
  HitRate good;
  for (int i = 0; i < 50; ++i) good.learn(4, 4);
  const double before = good.value();
  good.rest();
  EXPECT_EQ(good.value(), before) << "a text that has nothing to look up loses nothing";
}

}  // namespace
}  // namespace kvhive::testing
