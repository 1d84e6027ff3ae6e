#include "models/sampling/sampler.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>

namespace kvhive {
namespace {

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();

std::vector<float> logits_of(const std::vector<double>& probabilities) {
  std::vector<float> logits;
  for (const double p : probabilities) logits.push_back(static_cast<float>(std::log(p)));
  return logits;
}

/// Shares of the tokens over many positions.
std::map<TokenId, double> shares(const std::vector<float>& logits, const SamplingParams& params) {
  constexpr int kDraws = 20000;
  std::map<TokenId, double> counts;
  for (int position = 0; position < kDraws; ++position)
    counts[sample(logits, params, position).token] += 1.0 / kDraws;
  return counts;
}

constexpr double kThreeSigma = 3 * 0.5 / 141;  // the most for a share over 20000 draws

TEST(Sampler, GreedyTakesTheLargestAndTheLowestOfTies) {
  EXPECT_EQ(sample(std::vector<float>{1, 3, 2}, {}, 0).token, 1);
  EXPECT_EQ(sample(std::vector<float>{1, 3, 3}, {}, 0).token, 1);
}

TEST(Sampler, FollowsTheDistribution) {
  const auto counts = shares(logits_of({0.5, 0.3, 0.15, 0.05}), {.temperature = 1, .seed = 7});
  EXPECT_NEAR(counts.at(0), 0.5, kThreeSigma);
  EXPECT_NEAR(counts.at(1), 0.3, kThreeSigma);
  EXPECT_NEAR(counts.at(2), 0.15, kThreeSigma);
  EXPECT_NEAR(counts.at(3), 0.05, kThreeSigma);
}

TEST(Sampler, TemperatureSharpens) {
  // p^2 normalised: 0.64 : 0.04 -> 16 : 1.
  const auto counts = shares(logits_of({0.8, 0.2}), {.temperature = 0.5, .seed = 1});
  EXPECT_NEAR(counts.at(0), 16.0 / 17, kThreeSigma);
}

TEST(Sampler, TopKKeepsTheLikeliestAndTies) {
  const auto two = shares(logits_of({0.1, 0.4, 0.2, 0.3}), {.temperature = 1, .top_k = 2});
  EXPECT_EQ(two.size(), 2u);
  EXPECT_NEAR(two.at(1), 4.0 / 7, kThreeSigma);
  const auto tied = shares(logits_of({0.25, 0.5, 0.25}), {.temperature = 1, .top_k = 2});
  EXPECT_EQ(tied.size(), 3u);
}

TEST(Sampler, TopPKeepsTheFewestThatReachIt) {
  const auto logits = logits_of({0.1, 0.5, 0.3, 0.1});
  EXPECT_EQ(shares(logits, {.temperature = 1, .top_p = 0.75f}).size(), 2u);
  EXPECT_EQ(shares(logits, {.temperature = 1, .top_p = 0.85f}).size(), 3u);
  const auto least = shares(logits, {.temperature = 1, .top_p = 1e-6f});
  EXPECT_EQ(least.size(), 1u);
  EXPECT_TRUE(least.contains(1));
}

TEST(Sampler, TopPCountsAfterTopK) {
  // Top-k keeps two tokens. The share of the first is then 0.5 / 0.8 = 0.625, enough for 0.6.
  const auto counts =
      shares(logits_of({0.5, 0.3, 0.2}), {.temperature = 1, .top_k = 2, .top_p = 0.6f});
  EXPECT_EQ(counts.size(), 1u);
}

TEST(Sampler, MinPIsRelativeToTheLikeliest) {
  const auto counts = shares(logits_of({0.5, 0.3, 0.15, 0.05}), {.temperature = 1, .min_p = 0.29f});
  EXPECT_EQ(counts.size(), 3u);
}

TEST(Sampler, IsAFunctionOfSeedAndPosition) {
  const std::vector<float> logits(1000, 0.0f);
  const SamplingParams params{.temperature = 1, .seed = 5};
  EXPECT_EQ(sample(logits, params, 3).token, sample(logits, params, 3).token);
  EXPECT_NE(sample(logits, params, 3).token, sample(logits, params, 4).token);
  EXPECT_NE(sample(logits, params, 3).token,
            sample(logits, {.temperature = 1, .seed = 6}, 3).token);
}

TEST(Sampler, LogprobIsTheRawModels) {
  const auto logits = logits_of({0.2, 0.8});
  EXPECT_NEAR(sample(logits, {}, 0).logprob, std::log(0.8), 1e-6);
  EXPECT_NEAR(sample(logits, {.temperature = 0.1f}, 0).logprob, std::log(0.8), 1e-6);
}

TEST(Sampler, NaNIsNeverChosen) {
  const std::vector<float> logits{kNaN, 1, kNaN, 2};
  EXPECT_EQ(sample(logits, {}, 0).token, 3);
  EXPECT_NEAR(sample(logits, {}, 0).logprob, -std::log1p(std::exp(-1.0)), 1e-6);
  for (const auto& [token, share] : shares(logits, {.temperature = 2, .top_k = 3, .top_p = 0.99f}))
    EXPECT_TRUE(token == 1 || token == 3) << token;
}

TEST(Sampler, RowsOfOnlyNanOrMinusInfinityGiveTokenZero) {
  for (const float hopeless : {kNaN, -kInf}) {
    const std::vector<float> logits(4, hopeless);
    for (const float temperature : {0.0f, 1.0f}) {
      const auto sampled = sample(logits, {.temperature = temperature}, 0);
      EXPECT_EQ(sampled.token, 0);
      EXPECT_EQ(sampled.logprob, -kInf);
    }
  }
}

TEST(Sampler, InfinityIsCertain) {
  const std::vector<float> logits{0, kInf, 1};
  EXPECT_EQ(sample(logits, {.temperature = 1}, 0).token, 1);
  EXPECT_EQ(sample(logits, {.temperature = 1}, 0).logprob, 0);
}

TEST(Sampler, ExtremeTemperaturesStayFinite) {
  const std::vector<float> logits{-1e30f, 1e30f, 0};
  EXPECT_EQ(sample(logits, {.temperature = 1e-4f}, 0).token, 1);
  EXPECT_EQ(sample(logits, {.temperature = 1e-9f}, 0).token, 1);
}

TEST(Sampler, TopLogprobsAreSortedAndSumToOne) {
  const auto top = top_logprobs(logits_of({0.1, 0.4, 0.1, 0.4}), 10);
  ASSERT_EQ(top.size(), 4u);
  EXPECT_EQ(top[0].token, 1);
  EXPECT_EQ(top[1].token, 3);
  EXPECT_EQ(top[2].token, 0);
  double total = 0;
  for (const auto& entry : top) total += std::exp(entry.logprob);
  EXPECT_NEAR(total, 1, 1e-6);
  EXPECT_TRUE(top_logprobs(logits_of({1.0}), 0).empty());
}

TEST(Sampler, ALogprobsRankIsItsPlaceInTheOrderOfAll) {
  // The last: so close that their log-probabilities may be the same number.
  for (const std::vector<float>& logits :
       {logits_of({0.1, 0.4, 0.1, 0.4}),
        std::vector<float>{1, std::nextafter(1.0f, 2.0f), 0, 12}}) {
    const auto top = top_logprobs(logits, 4);
    for (std::uint32_t place = 0; place < 4; ++place) {
      std::uint32_t rank = 0;
      EXPECT_EQ(logprob_of(logits, top[place].token, rank), top[place]);
      EXPECT_EQ(rank, place + 1);
    }
  }
  std::uint32_t rank = 0;
  const float nan = std::numeric_limits<float>::quiet_NaN();
  (void)logprob_of(std::vector<float>{nan, 1, -std::numeric_limits<float>::infinity()}, 2, rank);
  EXPECT_EQ(rank, 3u);
}

TEST(SamplingParams, OutOfRangeNamesTheField) {
  const auto refused = [](const SamplingParams& params, const std::string& field) {
    const auto result = checked(params);
    return !result && result.error().text.find(field) != std::string::npos;
  };
  EXPECT_TRUE(refused({.temperature = -1}, "temperature"));
  EXPECT_TRUE(refused({.temperature = kNaN}, "temperature"));
  EXPECT_TRUE(refused({.top_k = -2}, "top_k"));
  EXPECT_TRUE(refused({.top_p = 0}, "top_p"));
  EXPECT_TRUE(refused({.top_p = 1.5f}, "top_p"));
  EXPECT_TRUE(refused({.top_p = kNaN}, "top_p"));
  EXPECT_TRUE(refused({.min_p = -0.1f}, "min_p"));
  EXPECT_TRUE(checked({.temperature = 0.8f, .top_k = -1, .top_p = 0.9f, .min_p = 0.1f}));
}

}  // namespace
}  // namespace kvhive
