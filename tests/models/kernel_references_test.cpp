// Compares the references of the GPU's row kernels and sampler with the CPU's transformer and
// sampler.

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

#include "kernels/row_kernels.hpp"
#include "kernels/sampling.hpp"
#include "models/rope.hpp"
#include "models/row_ops.hpp"
#include "models/sampling/sampler.hpp"
#include "tests/models/sampling/sampling_params.hpp"

namespace kvhive {
namespace {

std::vector<float> random_floats(std::size_t count, unsigned seed, float scale = 1) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, scale);
  std::vector<float> values(count);
  for (float& value : values) value = normal(random);
  return values;
}

void expect_near(const std::vector<float>& got, const std::vector<float>& want) {
  ASSERT_EQ(got.size(), want.size());
  for (std::size_t i = 0; i < got.size(); ++i)
    ASSERT_NEAR(got[i], want[i], 2e-6 * (1 + std::fabs(want[i]))) << i;
}

TEST(KernelReferences, NormAndSwigluAreTheCpusRowOps) {
  constexpr std::int32_t T = 3, kWidth = 100;
  const auto weight = random_floats(kWidth, 1), delta = random_floats(T * kWidth, 2);
  auto residual = random_floats(T * kWidth, 3);
  auto sum = residual;
  add_in_place(sum, delta);
  std::vector<float> want(T * kWidth), out(T * kWidth);
  rms_norm(sum, weight, 1e-5f, want);
  add_rms_norm_reference({residual.data(), delta.data(), weight.data(), out.data(), nullptr, T,
                          kWidth, 1e-5f, Dtype::f32, Dtype::f32});
  EXPECT_EQ(residual, sum);
  expect_near(out, want);

  gate_multiply_reference({sum.data(), delta.data(), out.data(), T, kWidth, kWidth, Dtype::f32});
  silu_multiply(sum, delta);
  expect_near(out, sum);
}

TEST(KernelReferences, RotationIsTheCpusRope) {
  ModelConfig config;
  config.head_size = 64;
  config.rope.full.theta = 500000;
  const Rope rope(config);
  const std::vector<std::int32_t> positions{0, 3, 8191, 131071};
  const auto T = static_cast<std::int32_t>(positions.size());
  auto q = random_floats(T * 3 * 64, 1), k = random_floats(T * 64, 2);
  auto q_want = q, k_want = k;
  RopeAngles angles;
  rope.angles(positions, angles);
  rope.rotate(q_want, 3, angles);
  rope.rotate(k_want, 1, angles);
  rotate_reference({q.data(), k.data(), positions.data(), rope.frequencies().data(), nullptr,
                    nullptr, T, 3, 1, 64, 1e-5f, Dtype::f32});
  expect_near(q, q_want);
  expect_near(k, k_want);
}

TEST(KernelReferences, SamplesAreThoseOfTheCpuSampler) {
  constexpr std::int32_t kVocab = 211, K = 7;
  constexpr std::size_t kRows = 2000;
  std::mt19937 random(4);
  auto logits = random_floats(kRows * kVocab, 5, 3);
  for (float& logit : logits) {  // makes ties, NaN and infinities
    if (random() % 4 == 0) logit = std::round(logit);
    if (random() % 50 == 0) logit = std::numeric_limits<float>::quiet_NaN();
    if (random() % 5000 == 0) logit = std::numeric_limits<float>::infinity();
  }
  std::vector<SampleChoice> choices(kRows);
  for (SampleChoice& choice : choices)
    choice = {.seed = random(),
              .position = random() % 5000,
              .temperature = float(random() % 4) * 0.6f,
              .top_p = random() % 2 == 0 ? 1.0f : float(1 + random() % 99) / 100,
              .min_p = random() % 3 == 0 ? 0.05f : 0.0f,
              .top_k = std::int32_t(random() % 40) - 1,
              .likeliest = K};
  std::vector<std::int32_t> tokens(kRows), listed(kRows * K);
  std::vector<float> logprobs(kRows), listed_logprobs(kRows * K);
  std::vector<double> margins(kRows);
  sample_reference({logits.data(), choices.data(), tokens.data(), logprobs.data(), listed.data(),
                    listed_logprobs.data(), std::int32_t(kRows), kVocab, K},
                   margins.data());
  for (std::size_t row = 0; row < kRows; ++row) {
    const auto of_row = std::span(logits).subspan(row * kVocab, kVocab);
    const SampleChoice& choice = choices[row];
    const Sampled want = sample(of_row, params_of(choice), choice.position);
    if (margins[row] > 1e-9) {
      ASSERT_EQ(tokens[row], want.token) << row;
      ASSERT_EQ(logprobs[row], want.logprob) << row;
    }
    const auto top = top_logprobs(of_row, K);
    for (std::size_t i = 0; i < K; ++i) {
      ASSERT_EQ(listed[row * K + i], top[i].token) << row;
      ASSERT_EQ(listed_logprobs[row * K + i], top[i].logprob) << row;
    }
  }
}

}  // namespace
}  // namespace kvhive
