#include "models/rope.hpp"

#include <gtest/gtest.h>

#include <cmath>

namespace kvhive {
namespace {

ModelConfig config_of(std::int32_t head_size) {
  ModelConfig config;
  config.head_size = head_size;
  return config;
}

TEST(Rope, TurnsPairsHalfAHeadApart) {
  const Rope rope(config_of(4));  // frequencies 1 and 1/100
  RopeAngles angles;
  const std::vector<std::int32_t> positions{0, 2};
  rope.angles(positions, angles);
  std::vector<float> rows{1, 0, 0, 1, 1, 0, 0, 1};
  rope.rotate(rows, 1, angles);
  EXPECT_EQ(std::vector(rows.begin(), rows.begin() + 4), (std::vector<float>{1, 0, 0, 1}));
  EXPECT_NEAR(rows[4], std::cos(2.0), 1e-6);
  EXPECT_NEAR(rows[6], std::sin(2.0), 1e-6);
  EXPECT_NEAR(rows[5], -std::sin(0.02), 1e-6);
  EXPECT_NEAR(rows[7], std::cos(0.02), 1e-6);
}

TEST(Rope, LinearScalingDividesFrequencies) {
  auto config = config_of(8);
  const Rope plain(config);
  config.rope_scaling = {.kind = RopeScaling::Kind::linear, .factor = 4};
  const Rope stretched(config);
  for (std::size_t i = 0; i < 4; ++i)
    EXPECT_EQ(stretched.frequencies()[i], plain.frequencies()[i] / 4);
}

TEST(Rope, Llama3ScalingKeepsFastAndStretchesSlowFrequencies) {
  auto config = config_of(128);
  config.rope_theta = 500000;
  const Rope plain(config);
  config.rope_scaling = {RopeScaling::Kind::llama3, 8, 1, 4, 8192};
  const Rope scaled(config);
  EXPECT_EQ(scaled.frequencies().front(), plain.frequencies().front());
  EXPECT_EQ(scaled.frequencies().back(), plain.frequencies().back() / 8);
  for (std::size_t i = 0; i < 64; ++i) {
    const float ratio = scaled.frequencies()[i] / plain.frequencies()[i];
    EXPECT_TRUE(ratio >= 0.1249f && ratio <= 1.0001f) << i << " " << ratio;
  }
}

}  // namespace
}  // namespace kvhive
