#include "models/experts.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

namespace kvhive {
namespace {

std::vector<float> random_floats(std::size_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (float& value : values) value = normal(random);
  return values;
}

constexpr std::int32_t kExperts = 5, kPerToken = 2;
constexpr ExpertShape kShape{24, 40};

/// Random experts, and the weights that they refer to.
struct Experts {
  explicit Experts(Dtype of) : dtype(of) {
    for (std::int32_t e = 0; e < kExperts; ++e)
      weights.push_back({matrix(kShape.inner, kShape.hidden), matrix(kShape.inner, kShape.hidden),
                         matrix(kShape.hidden, kShape.inner)});
  }

  Matmul matrix(std::int32_t rows, std::int32_t columns) {
    const auto values = random_floats(std::size_t(rows) * columns, ++seed);
    auto& bytes = stored.emplace_back();
    for (const float value : values) {
      const std::uint16_t narrow = bf16_of_float(value);
      const auto* from = dtype == Dtype::bf16 ? reinterpret_cast<const std::byte*>(&narrow)
                                              : reinterpret_cast<const std::byte*>(&value);
      bytes.insert(bytes.end(), from, from + bytes_of(dtype));
    }
    return Matmul({dtype, rows, columns, bytes}, {});
  }

  /// The step's outputs, [T, hidden].
  std::vector<float> run(std::span<const float> logits, std::span<const float> x) {
    ExpertRoutes routes;
    routes.choose(logits, {kExperts, kPerToken, true});
    ExpertRows rows;
    std::vector<float> out(x.size(), NAN);
    run_experts(routes, weights, kShape, x, rows, out);
    EXPECT_LE(rows.x.size() + rows.gate.size() + rows.up.size() + rows.y.size(),
              ExpertRows::most_floats(logits.size() / kExperts, kPerToken, kShape));
    return out;
  }

  Dtype dtype;
  unsigned seed = 0;
  std::vector<std::vector<std::byte>> stored;
  std::vector<ExpertWeights> weights;
};

TEST(ExpertRoutes, TheMostLikelyExpertsGetTheirProbabilities) {
  const std::vector<float> logits{0, 2, 1, -1,  //
                                  3, 3, 0, 3};
  ExpertRoutes routes;
  routes.choose(logits, {4, 2, false});
  // Token 0 goes to experts 1 and 2; of token 1's three equal experts the first two.
  EXPECT_EQ(routes.first, (std::vector<std::int32_t>{0, 1, 3, 4, 4}));
  EXPECT_EQ(routes.tokens, (std::vector<std::int32_t>{1, 0, 1, 0}));
  const double sum = 1 + std::exp(2.0) + std::exp(1.0) + std::exp(-1.0);
  EXPECT_NEAR(routes.weights[1], std::exp(2.0) / sum, 1e-6);
  EXPECT_NEAR(routes.weights[3], std::exp(1.0) / sum, 1e-6);

  routes.choose(logits, {4, 2, true});
  EXPECT_NEAR(routes.weights[1], 1 / (1 + std::exp(-1.0)), 1e-6);
  EXPECT_NEAR(routes.weights[1] + routes.weights[3], 1, 1e-6);
  EXPECT_NEAR(routes.weights[0], 0.5, 1e-6);
}

TEST(ExpertRoutes, ScoresBySigmoidAreEachExpertsOwnAndWeightItsInput) {
  const std::vector<float> logits{0,  2,  -1, -3,  //
                                  -5, -5, -6, -4};
  ExpertRoutes routes;
  routes.choose(logits, {.experts = 4, .per_token = 2, .scores = ExpertScores::sigmoid});
  EXPECT_TRUE(routes.are_of_inputs);
  EXPECT_EQ(routes.first, (std::vector<std::int32_t>{0, 2, 3, 3, 4}));
  EXPECT_EQ(routes.tokens, (std::vector<std::int32_t>{0, 1, 0, 1}));
  EXPECT_NEAR(routes.weights[0], 0.5, 1e-6);
  EXPECT_NEAR(routes.weights[1], 1 / (1 + std::exp(5.0)), 1e-6);
  EXPECT_NEAR(routes.weights[2], 1 / (1 + std::exp(-2.0)), 1e-6);
}

TEST(ExpertRoutes, OnlyTheExpertsOfTheMostLikelyGroupsAreChosen) {
  const std::vector<float> logits{4, 0, 3, 1, 2, 2,   // groups of two: 4, 3 and 2 are their best
                                  1, 1, 1, 1, 1, 1};  // of equal groups the lower number
  ExpertRoutes routes;
  routes.choose(logits, {6, 3, false, 2.5f, 3, 2});
  // Without groups, token 0 would go to expert 4, not 3.
  EXPECT_EQ(routes.first, (std::vector<std::int32_t>{0, 2, 3, 5, 6, 6, 6}));
  EXPECT_EQ(routes.tokens, (std::vector<std::int32_t>{0, 1, 1, 0, 1, 0}));
  double sum = 0;
  for (std::size_t e = 0; e < 6; ++e) sum += std::exp(double{logits[e]});
  EXPECT_NEAR(routes.weights[0], 2.5 * std::exp(4.0) / sum, 1e-6);

  routes.choose(std::span(logits).first(6), {6, 2, true, 2.5f, 3, 1});
  EXPECT_EQ(routes.first, (std::vector<std::int32_t>{0, 1, 2, 2, 2, 2, 2}));
  EXPECT_NEAR(routes.weights[0] + routes.weights[1], 2.5, 1e-6);
}

TEST(ExpertRoutes, LogitsOfAnySizeGiveNumbers) {
  const std::vector<float> logits{1000, -1000, 999, -3e38f};
  ExpertRoutes routes;
  routes.choose(logits, {4, 3, true});
  for (const float weight : routes.weights) EXPECT_TRUE(std::isfinite(weight));
  EXPECT_EQ(routes.tokens.size(), 3u);  // a chosen expert counts, also with a weight of 0
}

TEST(RunExperts, AddsUpWhatTheChosenExpertsGive) {
  Experts experts(Dtype::f32);
  const auto logits = random_floats(7 * kExperts, 50), x = random_floats(7 * kShape.hidden, 51);
  const auto got = experts.run(logits, x);
  ExpertRoutes routes;
  routes.choose(logits, {kExperts, kPerToken, true});
  std::vector<float> want(x.size());
  for (std::int32_t e = 0; e < kExperts; ++e)
    for (std::int32_t i = routes.first[e]; i < routes.first[e + 1]; ++i) {
      const auto row = std::span(x).subspan(routes.tokens[i] * kShape.hidden, kShape.hidden);
      std::vector<float> gate(kShape.inner), up(kShape.inner), y(kShape.hidden);
      experts.weights[e].gate->apply(row, gate);
      experts.weights[e].up->apply(row, up);
      for (std::int32_t n = 0; n < kShape.inner; ++n)
        gate[n] = gate[n] / (1 + std::exp(-gate[n])) * up[n];
      experts.weights[e].down->apply(gate, y);
      for (std::int32_t d = 0; d < kShape.hidden; ++d)
        want[routes.tokens[i] * kShape.hidden + d] += routes.weights[i] * y[d];
    }
  for (std::size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(got[i], want[i], 1e-4) << i;
}

TEST(RunExperts, ATokensBitsAreThoseItHasAlone) {
  for (const Dtype dtype : {Dtype::f32, Dtype::bf16}) {
    Experts experts(dtype);
    constexpr std::size_t kTokens = 700;  // several groups of experts
    const auto logits = random_floats(kTokens * kExperts, 50);
    const auto x = random_floats(kTokens * kShape.hidden, 51);
    const auto all = experts.run(logits, x);
    for (const std::size_t t : {std::size_t{0}, std::size_t{333}, kTokens - 1}) {
      const auto alone = experts.run(std::span(logits).subspan(t * kExperts, kExperts),
                                     std::span(x).subspan(t * kShape.hidden, kShape.hidden));
      EXPECT_TRUE(std::equal(alone.begin(), alone.end(), all.begin() + t * kShape.hidden)) << t;
    }
  }
}

}  // namespace
}  // namespace kvhive
