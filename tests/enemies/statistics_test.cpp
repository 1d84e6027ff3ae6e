#include "tests/enemies/statistics.hpp"

#include <gtest/gtest.h>

namespace kvhive::testing {
namespace {

TEST(EnemyStatistics, AQuantileIsOneOfTheValues) {
  EXPECT_EQ(quantile({}, 0.5), 0);
  EXPECT_EQ(quantile({7}, 0.99), 7);
  EXPECT_EQ(quantile({4, 1, 3, 2}, 0.5), 2);
  std::vector<double> hundred;
  for (int i = 1; i <= 100; ++i) hundred.push_back(i);
  EXPECT_EQ(quantile(hundred, 0.99), 99);
  EXPECT_EQ(quantile(hundred, 1), 100);
}

TEST(EnemyStatistics, TheIntervalHoldsTheMedianAndNarrowsWithMoreValues) {
  std::vector<double> few, many;
  for (int i = 0; i < 7; ++i) few.push_back(1 + 0.01 * i);
  for (int i = 0; i < 700; ++i) many.push_back(1 + 0.0001 * i);
  const Interval wide = median_with_interval(few, 1), narrow = median_with_interval(many, 1);
  for (const Interval& interval : {wide, narrow}) {
    EXPECT_LE(interval.low, interval.middle);
    EXPECT_GE(interval.high, interval.middle);
  }
  EXPECT_LT(narrow.high - narrow.low, wide.high - wide.low);
}

TEST(EnemyStatistics, EqualValuesAreCertain) {
  const Interval interval = median_with_interval({1.02, 1.02, 1.02}, 1);
  EXPECT_EQ(interval.low, 1.02);
  EXPECT_EQ(interval.high, 1.02);
}

}  // namespace
}  // namespace kvhive::testing
