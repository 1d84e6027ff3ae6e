#include "tests/timing/kolmogorov_smirnov.hpp"

#include <gtest/gtest.h>

#include <random>

namespace kvhive::testing {
namespace {

std::vector<double> ramp(double from, std::size_t count, double step = 1) {
  std::vector<double> values(count);
  for (std::size_t i = 0; i < count; ++i) values[i] = from + step * static_cast<double>(i);
  return values;
}

TEST(KolmogorovSmirnov, FindsNoDifferenceWhereThereIsNone) {
  EXPECT_EQ(kolmogorov_smirnov(ramp(0, 100), ramp(0, 100)).distance, 0);
  EXPECT_EQ(kolmogorov_smirnov(ramp(0, 100), ramp(0, 100)).p, 1);
  EXPECT_EQ(kolmogorov_smirnov(ramp(7, 50, 0), ramp(7, 900, 0)).p, 1)
      << "all values are one tick of the clock";
}

TEST(KolmogorovSmirnov, MeasuresTheDistance) {
  const auto apart = kolmogorov_smirnov(ramp(0, 100), ramp(100, 100));
  EXPECT_EQ(apart.distance, 1);
  EXPECT_LT(apart.p, 1e-40);
  const auto shifted = kolmogorov_smirnov(ramp(0, 1000), ramp(100, 1000));
  EXPECT_NEAR(shifted.distance, 0.1, 1e-12);
  EXPECT_NEAR(shifted.p, 8.1e-5, 0.2e-5);
  const auto unequal = kolmogorov_smirnov({1, 2, 3, 4}, {2.5});
  EXPECT_NEAR(unequal.distance, 0.5, 1e-12);
}

/// Under the null hypothesis p is uniform: one test in a hundred says p < 0.01.
TEST(KolmogorovSmirnov, IsWrongAsOftenAsPSays) {
  std::mt19937 random(1);
  std::exponential_distribution<double> latency(1.0);
  int rejected = 0;
  for (int trial = 0; trial < 2000; ++trial) {
    std::vector<double> a(200), b(200);
    for (double& value : a) value = latency(random);
    for (double& value : b) value = latency(random);
    rejected += kolmogorov_smirnov(a, b).p < 0.01;
  }
  EXPECT_GE(rejected, 5);
  EXPECT_LE(rejected, 40);
}

}  // namespace
}  // namespace kvhive::testing
