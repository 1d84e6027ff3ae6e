#include "base/check.hpp"

#include <gtest/gtest.h>

namespace kvhive {
namespace {

TEST(KvCheck, PassesSilentlyEvaluatingOnce) {
  int evaluations = 0;
  KV_CHECK(++evaluations == 1, "unused");
  EXPECT_EQ(evaluations, 1);
}

TEST(KvCheck, DoesNotEvaluateValuesUnlessItFails) {
  int evaluations = 0;
  KV_CHECK(true, ++evaluations);
  EXPECT_EQ(evaluations, 0);
}

TEST(KvCheckDeathTest, NamesPlaceExpressionAndValues) {
  const int free = 3;
  EXPECT_DEATH(KV_CHECK(free > 4, free, "blocks"),
               "check_test.cpp:[0-9]+: check failed: free > 4: 3 blocks");
  EXPECT_DEATH(KV_CHECK(free > 4), "check failed: free > 4:");
}

}  // namespace
}  // namespace kvhive
