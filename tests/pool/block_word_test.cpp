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

TEST(BlockWord, IsIdleWhenPublishedAndNotHeld) {
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

/// The transitions of tests/model/block_word.pml.
TEST(BlockWord, ChangesAsTheModelDoes) {
  constexpr ProcessSlot kOne{1}, kTwo{2};
  const BlockWord free{};
  const BlockWord filling = free.taken_by(kOne);
  EXPECT_EQ(filling, BlockWord::make(BlockState::filling, 1, 0b10));
  EXPECT_TRUE(filling.is_filled_by(kOne));
  EXPECT_FALSE(filling.is_filled_by(kTwo));
  EXPECT_EQ(filling.freed(), BlockWord::make(BlockState::free, 1, 0));
  const BlockWord ready = filling.published_by(kOne);
  EXPECT_EQ(ready, BlockWord::make(BlockState::ready, 1, 0b10));
  const BlockWord shared = ready.pinned_by(kTwo);
  EXPECT_EQ(shared, BlockWord::make(BlockState::ready, 1, 0b110));
  EXPECT_EQ(shared.pinned_by(kTwo), shared) << "a process has one bit, however often it pins";
  EXPECT_EQ(shared.unpinned_by(kOne), BlockWord::make(BlockState::ready, 1, 0b100));
  const BlockWord idle = shared.unpinned_by(kOne).unpinned_by(kTwo);
  EXPECT_TRUE(idle.is_idle());
  EXPECT_EQ(idle.taken_by(kTwo), BlockWord::make(BlockState::filling, 2, 0b100));
  EXPECT_EQ(shared.retired(), BlockWord::make(BlockState::retired, 2, 0));
}

TEST(BlockWord, IsTheSamePublicationUntilItIsTakenAnew) {
  const BlockWord ready = BlockWord{}.taken_by(ProcessSlot{0}).published_by(ProcessSlot{0});
  EXPECT_TRUE(ready.is_same_generation(ready.pinned_by(ProcessSlot{3})));
  EXPECT_FALSE(ready.is_same_generation(ready.taken_by(ProcessSlot{0})));
  EXPECT_FALSE(
      ready.is_same_generation(ready.taken_by(ProcessSlot{0}).published_by(ProcessSlot{0})));
  EXPECT_FALSE(BlockWord{}.is_same_generation(BlockWord{})) << "a free block has no content";
}

TEST(BlockState, AnUnknownStatePrintsAsDamaged) {
  EXPECT_EQ(to_string(BlockState::filling), "filling");
  EXPECT_EQ(to_string(BlockState(6)), "damaged");
}

}  // namespace
}  // namespace kvhive
