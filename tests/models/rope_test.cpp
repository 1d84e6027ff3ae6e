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
  config.rope.full.scaling = {.kind = RopeScaling::Kind::linear, .factor = 4};
  const Rope stretched(config);
  for (std::size_t i = 0; i < 4; ++i)
    EXPECT_EQ(stretched.frequencies()[i], plain.frequencies()[i] / 4);
}

TEST(Rope, Llama3ScalingKeepsFastAndStretchesSlowFrequencies) {
  auto config = config_of(128);
  config.rope.full.theta = 500000;
  const Rope plain(config);
  config.rope.full.scaling = {RopeScaling::Kind::llama3, 8, 1, 4, 8192};
  const Rope scaled(config);
  EXPECT_EQ(scaled.frequencies().front(), plain.frequencies().front());
  EXPECT_EQ(scaled.frequencies().back(), plain.frequencies().back() / 8);
  for (std::size_t i = 0; i < 64; ++i) {
    const float ratio = scaled.frequencies()[i] / plain.frequencies()[i];
    EXPECT_TRUE(ratio >= 0.1249f && ratio <= 1.0001f) << i << " " << ratio;
  }
}

RopeConfig yarn(double original, double beta_fast = 32, double beta_slow = 1) {
  return {.theta = 10000,
          .scaling = {.kind = RopeScaling::Kind::yarn,
                      .factor = 4,
                      .original_max_position = static_cast<std::int64_t>(original),
                      .beta_fast = beta_fast,
                      .beta_slow = beta_slow,
                      .attention_factor = 1.25}};
}

TEST(Rope, YarnKeepsFastAndStretchesSlowFrequencies) {
  const Rope plain(config_of(128));
  // Qwen's numbers: pairs 0 to 23 turn more than 32 times in 32,768 tokens, from 47 on less than
  // once.
  const Rope scaled(128, yarn(32768));
  for (std::size_t i = 0; i < 64; ++i) {
    const float ratio = scaled.frequencies()[i] / plain.frequencies()[i];
    if (i <= 35)
      EXPECT_NEAR(ratio, 1, 1e-6) << i;
    else if (i >= 60)
      EXPECT_NEAR(ratio, 0.25, 1e-6) << i;
    else
      EXPECT_NEAR(ratio, 1 - 0.75 * (double(i) - 35) / 25, 1e-5) << i;
  }
}

TEST(Rope, YarnMultipliesCosinesAndSines) {
  const Rope rope(8, yarn(64));
  RopeAngles angles;
  rope.angles(std::vector<std::int32_t>{0, 3}, angles);
  EXPECT_EQ(angles.cosines[0], 1.25f);
  EXPECT_EQ(angles.sines[0], 0);
  for (std::size_t i = 4; i < 8; ++i)
    EXPECT_NEAR(std::hypot(angles.cosines[i], angles.sines[i]), 1.25, 1e-6);
}

TEST(Rope, NeighboursTurnAsHalvesDoInAnotherOrder) {
  const Rope rope(8, yarn(64));
  RopeAngles angles;
  rope.angles(std::vector<std::int32_t>{2, 5}, angles);
  std::vector<float> halves(2 * 3 * 8), neighbours(2 * 3 * 11, -1);
  for (std::size_t row = 0; row < 6; ++row)
    for (std::size_t i = 0; i < 8; ++i) {
      halves[row * 8 + i] = static_cast<float>(row + 1) / static_cast<float>(i + 1);
      neighbours[row * 11 + (i < 4 ? 2 * i : 2 * i - 7)] = halves[row * 8 + i];
    }
  rope.rotate(halves, 3, angles);
  rope.rotate_neighbours(neighbours, 11, 3, angles);
  for (std::size_t row = 0; row < 6; ++row) {
    for (std::size_t i = 0; i < 8; ++i)
      EXPECT_EQ(neighbours[row * 11 + (i < 4 ? 2 * i : 2 * i - 7)], halves[row * 8 + i]);
    for (std::size_t i = 8; i < 11; ++i) EXPECT_EQ(neighbours[row * 11 + i], -1);
  }
}

}  // namespace
}  // namespace kvhive
