#include "base/ids.hpp"

#include <gtest/gtest.h>

#include <unordered_set>

namespace kvhive {
namespace {

static_assert(!std::is_convertible_v<int, BlockId>, "a number is no block");
static_assert(!std::is_convertible_v<BlockId, std::uint32_t>, "a block is no number");
static_assert(!std::is_same_v<BlockId, ProcessSlot>, "a block is no process");

TEST(StrongId, ComparesAndHashesAsItsValue) {
  EXPECT_EQ(BlockId{3}, BlockId{3});
  EXPECT_LT(BlockId{3}, BlockId{4});
  const std::unordered_set<BlockId> set{BlockId{1}, BlockId{1}, BlockId{2}};
  EXPECT_EQ(set.size(), 2u);
}

TEST(StrongId, StartsAsZero) {
  EXPECT_EQ(BlockId{}, kNullBlock);
  EXPECT_EQ(SeqId{}.value, 0u);
}

}  // namespace
}  // namespace kvhive
