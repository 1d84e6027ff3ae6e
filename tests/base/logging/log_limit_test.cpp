#include "base/logging/log_limit.hpp"

#include <gtest/gtest.h>

namespace kvhive::testing {
namespace {

using namespace std::chrono_literals;

struct LogLimitTest : ::testing::Test {
  LogLimit::Time now{};
  LogLimit limit{3, 10s, [this] { return now; }};
};

TEST_F(LogLimitTest, LetsAFewLinesThroughAndSaysThatMoreAreLeftOut) {
  EXPECT_EQ(limit.admit(), "");
  now += 4s;
  EXPECT_EQ(limit.admit(), "");
  EXPECT_EQ(limit.admit(), " (more like it are left out for 6 s)");
  for (int i = 0; i < 1000; ++i) EXPECT_EQ(limit.admit(), std::nullopt);
}

TEST_F(LogLimitTest, TheNextPeriodBeginsWithTheNumberOfThoseLeftOut) {
  for (int i = 0; i < 3 + 1000; ++i) (void)limit.admit();
  now += 9'999ms;
  EXPECT_EQ(limit.admit(), std::nullopt);
  now += 1ms;
  EXPECT_EQ(limit.admit(), " (1001 more like it were left out)");
  EXPECT_EQ(limit.admit(), "");
  EXPECT_EQ(limit.admit(), " (more like it are left out for 10 s)");
}

TEST_F(LogLimitTest, APeriodBeginsWithItsFirstLine) {
  EXPECT_EQ(limit.admit(), "");
  now += 1h;
  EXPECT_EQ(limit.admit(), "");
  EXPECT_EQ(limit.admit(), "");
  now += 9s;
  EXPECT_EQ(limit.admit(), " (more like it are left out for 1 s)");
  EXPECT_EQ(limit.admit(), std::nullopt);
}

TEST(LogLimit, OneLineInEachPeriodSaysBoth) {
  LogLimit::Time now{};
  LogLimit limit(1, 5s, [&] { return now; });
  EXPECT_EQ(limit.admit(), " (more like it are left out for 5 s)");
  EXPECT_EQ(limit.admit(), std::nullopt);
  now += 5s;
  EXPECT_EQ(limit.admit(), " (1 more like it were left out) (more like it are left out for 5 s)");
}

}  // namespace
}  // namespace kvhive::testing
