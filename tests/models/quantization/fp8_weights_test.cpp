#include "models/quantization/fp8_weights.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "config/fp8.hpp"

namespace kvhive {
namespace {

using Shape = std::vector<std::int64_t>;

TEST(ScaleGrid, FollowsTheShapeOfTheScales) {
  const Quantization plain{.kind = Quantization::Kind::fp8};
  for (const Shape& shape : {Shape{}, Shape{1}, Shape{1, 1}}) {
    const auto grid = scale_grid(plain, 6, 4, shape);
    ASSERT_TRUE(grid);
    EXPECT_EQ(grid->block_rows, 6);
    EXPECT_EQ(grid->block_columns, 4);
  }
  for (const Shape& shape : {Shape{6}, Shape{6, 1}}) {
    const auto grid = scale_grid(plain, 6, 4, shape);
    ASSERT_TRUE(grid);
    EXPECT_EQ(grid->block_rows, 1);
    EXPECT_EQ(grid->block_columns, 4);
  }
  for (const Shape& shape : {Shape{5}, Shape{4, 1}, Shape{6, 4}, Shape{1, 6}, Shape{6, 1, 1}})
    EXPECT_FALSE(scale_grid(plain, 6, 4, shape));
}

TEST(ScaleGrid, BlocksMayBeCutAtTheEnds) {
  const Quantization blocks{Quantization::Kind::fp8, 4, 3};
  EXPECT_TRUE(scale_grid(blocks, 6, 7, Shape{2, 3}));
  for (const Shape& shape : {Shape{}, Shape{1, 2}, Shape{3, 2}, Shape{6, 1}})
    EXPECT_FALSE(scale_grid(blocks, 6, 7, shape));
}

TEST(Fp8Weights, AreCodesTimesTheirBlocksScale) {
  constexpr std::int32_t N = 5, K = 7;
  std::vector<std::byte> codes;
  for (std::int32_t i = 0; i < N * K; ++i) codes.push_back(std::byte(i * 7 % 256));
  const ScaleGrid grid{2, 4, {1, 2, 3, 4, 0.5f, 0.25f}};
  const auto wide = values_of_e4m3(codes, N, K, grid, Dtype::f32);
  const auto narrow = values_of_e4m3(codes, N, K, grid, Dtype::bf16);
  ASSERT_EQ(wide.size(), codes.size() * 4);
  ASSERT_EQ(narrow.size(), codes.size() * 2);
  for (std::int32_t row = 0; row < N; ++row)
    for (std::int32_t column = 0; column < K; ++column) {
      const std::size_t i = row * K + column;
      const float want =
          float_of_e4m3(std::uint8_t(codes[i])) * grid.scales[row / 2 * 2 + column / 4];
      float got;
      std::uint16_t rounded;
      std::memcpy(&got, &wide[i * 4], sizeof got);
      std::memcpy(&rounded, &narrow[i * 2], sizeof rounded);
      EXPECT_EQ(got, want) << row << " " << column;
      EXPECT_EQ(rounded, bf16_of_float(want)) << row << " " << column;
    }
}

}  // namespace
}  // namespace kvhive
