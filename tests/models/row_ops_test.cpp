#include "models/row_ops.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

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

TEST(RowOps, AddInPlaceAdds) {
  std::vector<float> x{1, 2};
  add_in_place(x, std::vector<float>{10, 20});
  EXPECT_EQ(x, (std::vector<float>{11, 22}));
}

}  // namespace
}  // namespace kvhive
