#include "actors/swapper_state.hpp"

#include <gtest/gtest.h>

#include <cstring>

#include "tests/support/private_pool.hpp"

namespace kvhive::testing {
namespace {

class SwapperStateTest : public ::testing::Test {
 protected:
  std::size_t block_bytes() const { return memory_.geometry().models[0].kv.block_bytes(); }
  void fill(Tier tier, std::uint32_t index, unsigned char value) {
    std::memset(memory_.arena(tier) + index * block_bytes(), value, block_bytes());
  }
  /// The byte that fills the whole block, or -1.
  int content(Tier tier, std::uint32_t index) const {
    const auto* bytes = reinterpret_cast<const unsigned char*>(memory_.arena(tier)) +
                        static_cast<std::size_t>(index) * block_bytes();
    for (std::size_t i = 0; i < block_bytes(); ++i)
      if (bytes[i] != bytes[0]) return -1;
    return bytes[0];
  }

  PoolMemory memory_ = private_pool(small_geometry(4, 4));
  SwapperState swapper_{memory_};
};

TEST_F(SwapperStateTest, MovesWholeBlocksByTheirIndexInTheirTier) {
  for (std::uint32_t i = 0; i < 4; ++i) {
    fill(Tier::device, i, static_cast<unsigned char>(10 + i));
    fill(Tier::host, i, static_cast<unsigned char>(20 + i));
  }
  StepPlan plan;
  plan.swap_out = {{1, 0}, {2, 3}};
  plan.swap_in = {{1, 3}};
  ASSERT_TRUE(swapper_.move(plan));
  const int device[] = {10, 11, 12, 21}, host[] = {11, 21, 22, 12};
  for (std::uint32_t i = 0; i < 4; ++i) {
    EXPECT_EQ(content(Tier::device, i), device[i]) << i;
    EXPECT_EQ(content(Tier::host, i), host[i]) << i;
  }
}

TEST_F(SwapperStateTest, ABlockMayBeCopiedOutAndFilledInOneStep) {
  fill(Tier::device, 1, 11);
  fill(Tier::host, 2, 22);
  StepPlan plan;
  plan.swap_out = {{1, 0}};
  plan.swap_in = {{2, 1}};
  ASSERT_TRUE(swapper_.move(plan));
  EXPECT_EQ(content(Tier::host, 0), 11);
  EXPECT_EQ(content(Tier::device, 1), 22);
}

TEST_F(SwapperStateTest, ABlockChangesItsDomainAfterTheCopyOutAndBeforeTheCopyIn) {
  const BlockDescriptor* descriptors = memory_.descriptors();
  for (std::uint32_t i = 1; i < 3; ++i) fill(Tier::device, i, 11);
  fill(Tier::host, 3, 22);
  StepPlan plan;
  plan.swap_out = {{1, 0}, {2, 1}};
  plan.domain_changes = {{BlockId{1}, DomainId{7}}, {BlockId{2}, DomainId{7}}};
  plan.swap_in = {{3, 2}};
  ASSERT_TRUE(swapper_.move(plan));
  EXPECT_EQ(content(Tier::host, 0), 11);
  EXPECT_EQ(content(Tier::host, 1), 11);
  EXPECT_EQ(content(Tier::device, 1), 0);
  EXPECT_EQ(content(Tier::device, 2), 22);
  for (std::uint32_t i = 1; i < 3; ++i) EXPECT_EQ(descriptors[i].domain.load(), 7u);
}

TEST(SwapperState, WithoutAHostTierThereIsNothingToMove) {
  const PoolMemory memory = private_pool(small_geometry(4));
  EXPECT_TRUE(SwapperState(memory).move({}));
}

}  // namespace
}  // namespace kvhive::testing
