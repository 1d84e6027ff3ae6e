// The sampler on the emulated GPU (or a real one: tools/gpu). It must choose the reference's
// tokens, unless a draw or a cut is so near a border that two orders of addition may differ.

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "kernels/cuda/cuda_kernels.hpp"
#include "tests/kernels/cuda/guarded.hpp"
#include "tests/kernels/cuda/schedules.hpp"

namespace kvhive {
namespace {

using testing_support::in_every_schedule;
using testing_support::random_floats;

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr double kBorder = 1e-6;
constexpr double kLogprobTolerance = 2e-6;
constexpr std::int32_t kUntouched = -77;

struct Samples {
  std::vector<std::int32_t> tokens, likeliest_tokens;
  std::vector<float> logprobs, likeliest_logprobs;
  bool operator==(const Samples&) const = default;
};

/// Rows of logits, each with a choice.
struct SampleBatch {
  std::int32_t vocab, K;
  std::vector<float> logits;
  std::vector<SampleChoice> choices;

  template <class Run>
  Samples run(Run kernel, std::size_t first, std::size_t count) const {
    const std::size_t listed = count * std::size_t(K) + 4;  // with guards
    Samples samples{std::vector(count + 4, kUntouched), std::vector(listed, kUntouched),
                    std::vector(count + 4, float(kUntouched)),
                    std::vector(listed, float(kUntouched))};
    // A copy of exactly these rows, so that a sanitizer reports a read behind them.
    const std::vector<float> rows(logits.begin() + std::ptrdiff_t(first * vocab),
                                  logits.begin() + std::ptrdiff_t((first + count) * vocab));
    SampleArgs args;
    args.logits = rows.data();
    args.choices = choices.data() + first;
    args.tokens = samples.tokens.data();
    args.logprobs = samples.logprobs.data();
    args.likeliest_tokens = samples.likeliest_tokens.data();
    args.likeliest_logprobs = samples.likeliest_logprobs.data();
    args.n = std::int32_t(count);
    args.vocab = vocab;
    args.K = K;
    kernel(args);
    return samples;
  }
};

void on_device(const SampleArgs& args) {
  const auto done = sample_cuda(args, nullptr);
  ASSERT_TRUE(done) << done.error().text;
  testing_support::finish_kernels();
}

void expect_logprob(float got, float want, const std::string& where) {
  if (std::isinf(want))
    EXPECT_EQ(got, want) << where;
  else
    EXPECT_NEAR(got, want, kLogprobTolerance * std::max(1.0f, std::fabs(want))) << where;
}

/// Compares with the reference. Returns how many rows were too near a border to compare.
std::size_t expect_reference(const SampleBatch& batch) {
  const std::size_t n = batch.choices.size(), K = std::size_t(batch.K);
  std::vector<double> margins(n);
  const Samples want =
      batch.run([&](const SampleArgs& args) { sample_reference(args, margins.data()); }, 0, n);
  const Samples got = batch.run(on_device, 0, n);
  std::size_t skipped = 0;
  for (std::size_t row = 0; row < n; ++row) {
    const std::string where = "row " + std::to_string(row);
    const auto logits = std::span(batch.logits).subspan(row * batch.vocab, batch.vocab);
    if (margins[row] < kBorder) {
      ++skipped;
    } else {
      EXPECT_EQ(got.tokens[row], want.tokens[row]) << where << ", margin " << margins[row];
      expect_logprob(got.logprobs[row], want.logprobs[row], where);
    }
    for (std::size_t i = 0; i < K; ++i) {
      const std::size_t at = row * K + i;
      expect_logprob(got.likeliest_logprobs[at], want.likeliest_logprobs[at], where);
      // The order of two tokens may depend on the last bit of a logprob.
      if (got.likeliest_tokens[at] != want.likeliest_tokens[at]) {
        EXPECT_NEAR(logits[got.likeliest_tokens[at]], logits[want.likeliest_tokens[at]], 1e-5)
            << where;
      }
    }
  }
  for (std::size_t i = n; i < n + 4; ++i) {
    EXPECT_EQ(got.tokens[i], kUntouched);
    EXPECT_EQ(got.logprobs[i], float(kUntouched));
  }
  for (std::size_t i = n * K; i < n * K + 4; ++i) {
    EXPECT_EQ(got.likeliest_tokens[i], kUntouched);
    EXPECT_EQ(got.likeliest_logprobs[i], float(kUntouched));
  }
  return skipped;
}

std::vector<SampleChoice> mixed_choices(std::size_t n, unsigned seed) {
  std::mt19937 random(seed);
  const auto any_of = [&](auto... values) {
    const std::common_type_t<decltype(values)...> all[] = {values...};
    return all[random() % sizeof...(values)];
  };
  std::vector<SampleChoice> choices(n);
  for (SampleChoice& choice : choices) {
    choice.seed = random();
    choice.position = random() % 1000;
    choice.temperature = any_of(0.0f, 0.3f, 1.0f, 1.0f, 2.5f, 100.0f);
    choice.top_k = any_of(0, -1, 1, 7, 50, 5000);
    choice.top_p = any_of(1.0f, 0.999f, 0.9f, 0.3f, 1e-4f);
    choice.min_p = any_of(0.0f, 0.0f, 0.01f, 0.5f, 1.0f);
  }
  return choices;
}

TEST(SampleCuda, TakesTheReferencesTokensOfRandomLogits) {
  std::size_t rows = 0, skipped = 0;
  for (const std::int32_t vocab : {1, 2, 31, 33, 257, 2048, 5003})
    for (const float scale : {0.1f, 3.0f, 12.0f}) {
      const std::size_t n = 24;
      skipped += expect_reference({vocab, 0, random_floats(n * vocab, unsigned(vocab), scale),
                                   mixed_choices(n, unsigned(vocab))});
      rows += n;
    }
  EXPECT_LT(skipped * 100, rows) << "of " << rows << " rows";
}

TEST(SampleCuda, AddsUpAWholeVocabulary) {
  const std::int32_t vocab = 128256;
  const std::size_t n = 6;
  auto choices = mixed_choices(n, 5);
  for (SampleChoice& choice : choices) choice.temperature = 1, choice.min_p = 0;
  choices[0].top_k = 0, choices[0].top_p = 1;
  choices[1].top_k = 0, choices[1].top_p = 0.95f;
  EXPECT_LE(expect_reference({vocab, 0, random_floats(n * vocab, 6, 2.5f), choices}), 1u);
}

TEST(SampleCuda, GivesTheSameBitsAloneInABatchAndInEverySchedule) {
  const std::int32_t vocab = 1003;
  const std::size_t n = 12;
  auto choices = mixed_choices(n, 9);
  for (std::size_t row = 0; row < n; ++row) choices[row].likeliest = std::int32_t(row % 4);
  const SampleBatch batch{vocab, 3, random_floats(n * vocab, 8, 3), choices};
  const Samples all = batch.run(on_device, 0, n);
  in_every_schedule([&] { EXPECT_TRUE(batch.run(on_device, 0, n) == all); });
  for (std::size_t row = 0; row < n; ++row) {
    const Samples alone = batch.run(on_device, row, 1);
    EXPECT_EQ(alone.tokens[0], all.tokens[row]);
    EXPECT_EQ(alone.logprobs[0], all.logprobs[row]);
    for (std::size_t i = 0; i < 3; ++i) {
      EXPECT_EQ(alone.likeliest_tokens[i], all.likeliest_tokens[row * 3 + i]);
      EXPECT_EQ(alone.likeliest_logprobs[i], all.likeliest_logprobs[row * 3 + i]);
    }
  }
}

TEST(SampleCuda, PrefersLowIdsAmongEqualsAndSkipsImpossibleTokens) {
  const std::vector<std::vector<float>> rows = {
      {1, 3, 3, -2, 3, 0, 3, 1},
      {kNaN, kNaN, -1, kNaN, -1, -kInf, -1, kNaN},
      {-kInf, kNaN, -kInf, kNaN, -kInf, -kInf, -kInf, kNaN},
      {kNaN, kInf, 2, kInf, 3, 4, 5, 6},
      {0.0f, -0.0f, 0.0f, -0.0f, 0.0f, 0.0f, 0.0f, -0.0f},
      {1e-20f, 2e-20f, -3, -4, -5, -6, -7, -8}};
  const std::vector<SampleChoice> ways = {
      {},
      {.seed = 3, .position = 5, .temperature = 1},
      {.seed = 4, .position = 5, .temperature = 0.5f, .top_p = 0.4f},
      {.seed = 5, .position = 1, .temperature = 2, .min_p = 1},
      {.seed = 6, .position = 1, .temperature = 1, .top_k = 2},
      {.seed = 7, .position = 2, .temperature = 1, .top_p = 0.6f, .top_k = 1},
      {.seed = 8, .position = 9, .temperature = 1, .top_p = 1e-6f}};
  SampleBatch batch{8, 8, {}, {}};
  for (const auto& row : rows)
    for (SampleChoice way : ways) {
      way.likeliest = 8;
      batch.logits.insert(batch.logits.end(), row.begin(), row.end());
      batch.choices.push_back(way);
    }
  EXPECT_EQ(expect_reference(batch), 0u);
  const Samples got = batch.run(on_device, 0, batch.choices.size());
  EXPECT_EQ(got.tokens[0], 1);
  EXPECT_EQ(got.tokens[ways.size()], 2);
  for (std::size_t way = 0; way < ways.size(); ++way) {
    EXPECT_EQ(got.tokens[2 * ways.size() + way], 0);
    EXPECT_EQ(got.logprobs[2 * ways.size() + way], -kInf);
  }
  const auto first = got.likeliest_tokens.begin();
  EXPECT_EQ(std::vector(first, first + 8), (std::vector{1, 2, 4, 6, 0, 7, 5, 3}));
}

TEST(SampleCuda, ReportsTheLikeliest) {
  const std::int32_t vocab = 700;
  auto choices = mixed_choices(5, 2);
  for (SampleChoice& choice : choices) choice.likeliest = 20;
  EXPECT_LE(expect_reference({vocab, 20, random_floats(5 * vocab, 4, 2), choices}), 1u);
  // One row asks for fewer tokens than the arrays hold, one for more than there are.
  const SampleBatch few{3, 5, {1, 3, 2, 1, 2, 3}, {{.likeliest = 2}, {.likeliest = 5}}};
  const Samples got = few.run(on_device, 0, 2);
  const auto u = kUntouched;
  EXPECT_EQ(std::vector(got.likeliest_tokens.begin(), got.likeliest_tokens.begin() + 10),
            (std::vector{1, 2, u, u, u, 2, 1, 0, u, u}));
}

TEST(SampleCuda, RefusesNoVocabularyAndTakesNoRows) {
  SampleArgs args;
  EXPECT_EQ(sample_cuda(args, nullptr).error().code, Errc::bad_argument);
  args.vocab = 3;
  EXPECT_TRUE(sample_cuda(args, nullptr));
}

}  // namespace
}  // namespace kvhive
