#include "tools/snapshot/rates.hpp"

#include <gtest/gtest.h>

#include "tests/snapshot/sample_snapshot.hpp"

namespace kvhive::testing {
namespace {

TEST(TopRates, AreCountersPerSecond) {
  const Rates rates = rates_between(earlier_snapshot(), sample_snapshot());
  ASSERT_TRUE(rates.hive.has_value());
  EXPECT_DOUBLE_EQ(rates.hive->prompt_tokens, 2000);
  EXPECT_DOUBLE_EQ(rates.hive->generated_tokens, 60);
  EXPECT_DOUBLE_EQ(rates.hive->hit_share.value(), 0.75);
  EXPECT_DOUBLE_EQ(rates.engines.at(0).prompt_tokens, 1000);
  EXPECT_DOUBLE_EQ(rates.engines.at(0).generated_tokens, 50);
  EXPECT_FALSE(rates.engines.at(1).hit_share.has_value()) << "no prompt came in between";
}

TEST(TopRates, AnEngineStartedInBetweenHasNone) {
  Snapshot now = sample_snapshot();
  now.engines[0].pid = 9999;
  const Rates rates = rates_between(earlier_snapshot(), now);
  EXPECT_FALSE(rates.engines.contains(0));
  EXPECT_TRUE(rates.engines.contains(1));
}

TEST(TopRates, AnotherPoolOrNoTimeHasNone) {
  Snapshot other = sample_snapshot();
  other.pool.epoch = "another";
  EXPECT_FALSE(rates_between(earlier_snapshot(), other).hive.has_value());
  const Snapshot now = sample_snapshot();
  EXPECT_FALSE(rates_between(now, now).hive.has_value());
}

TEST(TopRates, ACounterThatWentBackIsNoRate) {
  Snapshot now = sample_snapshot();
  set(now.engines[0].counted, "generated_tokens", 5);  // corrupt
  EXPECT_FALSE(rates_between(earlier_snapshot(), now).engines.contains(0));
}

}  // namespace
}  // namespace kvhive::testing
