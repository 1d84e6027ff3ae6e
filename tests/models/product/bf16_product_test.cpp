// The product with bf16 weights by f32, with each instruction set that it is compiled for.

#include "models/product/bf16_product.hpp"

#include <gtest/gtest.h>

#include <hwy/highway.h>
#include <optional>
#include <random>
#include <vector>

#include "config/dtype.hpp"
#include "tests/support/pretended_cpu.hpp"

namespace kvhive {
namespace {

using testing::PretendedCpu;

std::vector<std::uint16_t> random_bf16(std::size_t count, std::uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<std::uint16_t> values(count);
  for (auto& value : values) value = bf16_of_float(normal(random));
  return values;
}

/// A matrix whose size no instruction set divides, with K over more than one block.
struct Product {
  static constexpr std::int32_t kRows = 7, kColumns = 9, kDepth = kBf16ProductDepth + 37;
  const std::vector<std::uint16_t> x = random_bf16(std::size_t{kRows} * kDepth, 1);
  const std::vector<std::uint16_t> w = random_bf16(std::size_t{kColumns} * kDepth, 2);
  const std::vector<float> bias = [] {
    std::vector<float> values(kColumns);
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = float(i) - 4;
    return values;
  }();

  std::vector<float> of(std::int32_t first_row, std::int32_t rows) const {
    std::vector<float> y(std::size_t(rows) * kColumns);
    bf16_float_product({.x = x.data() + std::size_t(first_row) * kDepth,
                        .w = reinterpret_cast<const std::byte*>(w.data()),
                        .y = y.data(),
                        .bias = bias.data(),
                        .y_stride = kColumns,
                        .rows = rows,
                        .columns = kColumns,
                        .K = kDepth});
    return y;
  }

  double exact(std::int32_t row, std::int32_t column) const {
    double sum = bias[std::size_t(column)];
    for (std::int32_t k = 0; k < kDepth; ++k)
      sum += double{float_of_bf16(x[std::size_t(row) * kDepth + k])} *
             float_of_bf16(w[std::size_t(column) * kDepth + k]);
    return sum;
  }
};

class Bf16FloatProduct : public ::testing::TestWithParam<std::int64_t> {
 protected:
  void SetUp() override {
    if ((hwy::SupportedTargets() & GetParam()) == 0 && GetParam() != HWY_SCALAR)
      GTEST_SKIP() << "this CPU has no " << hwy::TargetName(GetParam());
    cpu_.emplace(GetParam());
  }
  std::optional<PretendedCpu> cpu_;
  const Product product_;
};

TEST_P(Bf16FloatProduct, MatchesDoubleSums) {
  const std::vector<float> y = product_.of(0, Product::kRows);
  for (std::int32_t row = 0; row < Product::kRows; ++row)
    for (std::int32_t column = 0; column < Product::kColumns; ++column)
      EXPECT_NEAR(y[std::size_t(row) * Product::kColumns + column], product_.exact(row, column),
                  1e-3);
}

TEST_P(Bf16FloatProduct, ARowsBitsDoNotDependOnTheOtherRows) {
  const std::vector<float> together = product_.of(0, Product::kRows);
  for (std::int32_t row = 0; row < Product::kRows; ++row)
    for (std::int32_t rows = 1; row + rows <= Product::kRows; ++rows) {
      const std::vector<float> some = product_.of(row, rows);
      EXPECT_TRUE(std::equal(some.begin(), some.end(),
                             together.begin() + std::ptrdiff_t{row} * Product::kColumns))
          << "row " << row << " with " << rows - 1 << " others";
    }
}

INSTANTIATE_TEST_SUITE_P(Targets, Bf16FloatProduct,
                         ::testing::Values(HWY_SCALAR, HWY_SSE4, HWY_AVX2, HWY_AVX3),
                         [](const auto& target) { return hwy::TargetName(target.param); });

}  // namespace
}  // namespace kvhive
