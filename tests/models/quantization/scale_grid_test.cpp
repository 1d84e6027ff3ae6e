#include "models/quantization/scale_grid.hpp"

#include <gtest/gtest.h>

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

TEST(ScaleGrid, FollowsWhatTheConfigSays) {
  using ScaleOf = Quantization::ScaleOf;
  const Quantization matrix{.kind = Quantization::Kind::fp8, .scale_of = ScaleOf::matrix};
  const Quantization row{.kind = Quantization::Kind::fp8, .scale_of = ScaleOf::row};
  for (const Shape& shape : {Shape{}, Shape{1}, Shape{1, 1}}) {
    EXPECT_TRUE(scale_grid(matrix, 6, 4, shape));
    EXPECT_FALSE(scale_grid(row, 6, 4, shape));
  }
  for (const Shape& shape : {Shape{6}, Shape{6, 1}}) {
    EXPECT_FALSE(scale_grid(matrix, 6, 4, shape));
    EXPECT_TRUE(scale_grid(row, 6, 4, shape));
  }
}

TEST(ScaleGrid, BlocksMayBeCutAtTheEnds) {
  const Quantization blocks{Quantization::Kind::fp8, 4, 3};
  EXPECT_TRUE(scale_grid(blocks, 6, 7, Shape{2, 3}));
  for (const Shape& shape : {Shape{}, Shape{1, 2}, Shape{3, 2}, Shape{6, 1}})
    EXPECT_FALSE(scale_grid(blocks, 6, 7, shape));
}

TEST(ScaleGrid, GroupsAreOfColumnsOfARow) {
  const Quantization groups{.kind = Quantization::Kind::packed, .bits = 4, .group = 32};
  const auto grid = scale_grid(groups, 6, 70, Shape{6, 3});
  ASSERT_TRUE(grid);
  EXPECT_EQ(grid->block_rows, 1);
  EXPECT_EQ(grid->block_columns, 32);
  for (const Shape& shape : {Shape{}, Shape{6}, Shape{6, 2}, Shape{3, 6}})
    EXPECT_FALSE(scale_grid(groups, 6, 70, shape));
}

}  // namespace
}  // namespace kvhive
