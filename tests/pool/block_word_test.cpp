#include "pool/block_word.hpp"

#include <gtest/gtest.h>

namespace kvhive {
namespace {

TEST(BlockWord, KeepsItsThreeParts) {
  for (const BlockState state :
       {BlockState::free, BlockState::filling, BlockState::ready, BlockState::retired}) {
    const BlockWord word = BlockWord::make(state, 0xabcdef1, 0x7fffffff);
    EXPECT_EQ(word.state(), state);
    EXPECT_EQ(word.generation(), 0xabcdef1u);
    EXPECT_EQ(word.holders(), 0x7fffffffu);
  }
}

TEST(BlockWord, GenerationWrapsWithoutTouchingTheRest) {
  const BlockWord last = BlockWord::make(BlockState::ready, BlockWord::kGenerationMask, 5);
  const BlockWord next = BlockWord::make(BlockState::filling, last.generation() + 1, 5);
  EXPECT_EQ(next.generation(), 0u);
  EXPECT_EQ(next.state(), BlockState::filling);
  EXPECT_EQ(next.holders(), 5u);
}

TEST(BlockWord, IsIdleWhenPublishedAndHeldByNobody) {
  EXPECT_TRUE(BlockWord::make(BlockState::ready, 7, 0).is_idle());
  EXPECT_FALSE(BlockWord::make(BlockState::ready, 7, 1).is_idle());
  EXPECT_FALSE(BlockWord::make(BlockState::free, 7, 0).is_idle());
  EXPECT_FALSE(BlockWord::make(BlockState::retired, 7, 0).is_idle());
}

TEST(BlockWord, ZeroIsAFreeBlock) {
  EXPECT_EQ(BlockWord{}, BlockWord::make(BlockState::free, 0, 0));
}

TEST(BlockWord, EverySlotHasABitOfItsOwn) {
  std::uint32_t seen = 0;
  for (std::uint32_t slot = 0; slot < kMaxProcesses; ++slot) {
    EXPECT_EQ(seen & holder_bit(ProcessSlot{slot}), 0u);
    seen |= holder_bit(ProcessSlot{slot});
  }
  EXPECT_EQ(BlockWord::make(BlockState::ready, 0, seen).holders(), seen);
}

TEST(BlockState, DamageHasAName) {
  EXPECT_EQ(to_string(BlockState::filling), "filling");
  EXPECT_EQ(to_string(BlockState(6)), "damaged");
}

}  // namespace
}  // namespace kvhive
