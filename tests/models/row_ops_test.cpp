#include "models/row_ops.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include "tests/emulated/arithmetic.hpp"

namespace kvhive {
namespace {

std::vector<float> random_floats(std::size_t count) {
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (auto& value : values) value = normal(random);
  return values;
}

TEST(RowOps, RmsNormMatchesItsFormula) {
  for (const std::size_t width : {1, 5, 16, 33, 128}) {
    const auto x = random_floats(3 * width);
    const auto weight = random_floats(width);
    std::vector<float> out(x.size());
    rms_norm(x, weight, 1e-5f, out);
    for (std::size_t row = 0; row < 3; ++row) {
      double squares = 0;
      for (std::size_t i = 0; i < width; ++i) squares += std::pow(double{x[row * width + i]}, 2);
      const double scale = 1 / std::sqrt(squares / width + 1e-5);
      for (std::size_t i = 0; i < width; ++i)
        EXPECT_NEAR(out[row * width + i], x[row * width + i] * scale * weight[i], 1e-5);
    }
  }
}

TEST(RowOps, RmsNormOfARowIgnoresOtherRowsAndMayBeInPlace) {
  constexpr std::size_t kWidth = 100;
  auto x = random_floats(20000 * kWidth);  // enough rows for threads
  const auto weight = random_floats(kWidth);
  std::vector<float> one(kWidth);
  rms_norm(std::span(x).subspan(777 * kWidth, kWidth), weight, 1e-6f, one);
  rms_norm(x, weight, 1e-6f, x);
  EXPECT_TRUE(std::equal(one.begin(), one.end(), x.begin() + 777 * kWidth));
}

TEST(RowOps, SiluSaturatesWithoutNaN) {
  std::vector<float> gate{0, 1, -1, 200, -200};
  const std::vector<float> up{5, 2, 2, 2, 2};
  silu_multiply(gate, up);
  EXPECT_EQ(gate[0], 0);
  EXPECT_NEAR(gate[1], 2 / (1 + std::exp(-1.0)), 1e-6);
  EXPECT_NEAR(gate[2], -2 / (1 + std::exp(1.0)), 1e-6);
  EXPECT_EQ(gate[3], 400);
  EXPECT_EQ(gate[4], 0);
}

TEST(RowOps, GeluIsTheOneByTanh) {
  std::vector<float> gate{0, 1, -1, 2.5f, 200, -200};
  const std::vector<float> up{5, 2, 2, 1, 2, 2};
  gelu_multiply(gate, up);
  // torch.nn.functional.gelu(x, approximate="tanh"); the exact one gives 2 * 0.8413447 for 1.
  EXPECT_EQ(gate[0], 0);
  EXPECT_NEAR(gate[1], 2 * 0.8411920, 1e-6);
  EXPECT_NEAR(gate[2], -2 * 0.1588080, 1e-6);
  EXPECT_NEAR(gate[3], 2.4849160, 1e-6);
  EXPECT_EQ(gate[4], 400);
  EXPECT_EQ(gate[5], 0);
}

TEST(RowOps, SoftCapKeepsSmallValuesAndBoundsLargeOnes) {
  std::vector<float> x{0, 0.01f, -3, 1e6f, -1e6f};
  soft_cap(x, 3);
  EXPECT_EQ(x[0], 0);
  EXPECT_NEAR(x[1], 0.01, 1e-6);
  EXPECT_NEAR(x[2], -3 * std::tanh(1.0), 1e-6);
  EXPECT_EQ(x[3], 3);
  EXPECT_EQ(x[4], -3);
}

TEST(RowOps, RotatesThePairsOfEachHead) {
  for (const std::size_t half : {1, 3, 16, 20, 64}) {
    constexpr std::size_t kTokens = 3, kHeads = 2;
    const auto before = random_floats(kTokens * kHeads * 2 * half);
    const auto cosines = random_floats(kTokens * half);
    std::vector<float> sines(cosines.rbegin(), cosines.rend()), rows = before;
    rotate_heads(rows, kHeads, cosines, sines, half);
    for (std::size_t t = 0; t < kTokens; ++t)
      for (std::size_t h = 0; h < kHeads; ++h)
        for (std::size_t i = 0; i < half; ++i) {
          const std::size_t at = (t * kHeads + h) * 2 * half + i;
          const double a = before[at], b = before[at + half];
          const double c = cosines[t * half + i], s = sines[t * half + i];
          EXPECT_NEAR(rows[at], a * c - b * s, 1e-5);
          EXPECT_NEAR(rows[at + half], b * c + a * s, 1e-5);
        }
  }
}

/// Whichever vectors compute them, values are as good as the formula's, and an element's bits do
/// not depend on its place or on what is beside it.
TEST(RowOps, EveryArithmeticComputesEachElementForItself) {
  constexpr std::size_t kCount = 1000;
  const auto x = random_floats(kCount), u = random_floats(kCount + 1);
  std::vector<float> wide(kCount);
  for (std::size_t i = 0; i < kCount; ++i) wide[i] = 40 * x[i];
  for (const CpuKernels kernels : kAllCpuKernels) {
    const testing_support::Arithmetic arithmetic{kernels, false};
    if (!testing_support::runs_here(arithmetic)) continue;
    SCOPED_TRACE(to_string(kernels));
    const testing_support::ComputedBy computed(arithmetic);
    const std::span<const float> up(u.data(), kCount);
    auto silu = wide, gelu = x, capped = wide;
    silu_multiply(silu, up);
    gelu_multiply(gelu, up);
    soft_cap(capped, 30);
    for (std::size_t i = 0; i < kCount; ++i) {
      const double w = wide[i], v = x[i];
      const double by_silu = w / (1 + std::exp(-w)) * u[i];
      const double y = std::sqrt(2 / M_PI) * (v + 0.044715 * v * v * v);
      const double by_gelu = 0.5 * v * (1 + std::tanh(y)) * u[i];
      EXPECT_NEAR(silu[i], by_silu, 1e-6 * std::abs(by_silu) + 1e-30) << w;
      EXPECT_NEAR(gelu[i], by_gelu, 1e-6 * std::abs(v * u[i])) << v;
      EXPECT_NEAR(capped[i], 30 * std::tanh(w / 30), 1e-5) << w;
    }
    for (const std::size_t from : {1, 7, 500, 999}) {
      std::vector<float> part(wide.begin() + std::ptrdiff_t(from), wide.end());
      silu_multiply(part, up.subspan(from));
      EXPECT_TRUE(std::equal(part.begin(), part.end(), silu.begin() + std::ptrdiff_t(from)))
          << from;
    }
  }
}

TEST(RowOps, AddInPlaceAdds) {
  std::vector<float> x{1, 2};
  add_in_place(x, std::vector<float>{10, 20});
  EXPECT_EQ(x, (std::vector<float>{11, 22}));
}

}  // namespace
}  // namespace kvhive
