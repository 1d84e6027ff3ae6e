#include "pool/free_blocks.hpp"

#include <gmock/gmock.h>

#include "tests/support/private_pool.hpp"
#include "tests/support/request.hpp"

namespace kvhive::testing {
namespace {

using Ids = std::vector<std::uint32_t>;

/// A pool's FreeBlocks, and its block words, which the test sets as processes would.
struct Hints {
  explicit Hints(std::uint32_t blocks)
      : memory(private_pool(small_geometry(blocks))), free(memory, Tier::device) {}

  auto& word(std::uint32_t id) { return memory.descriptors()[id].word; }
  std::uint64_t generation(std::uint32_t id) { return BlockWord{word(id).load()}.generation(); }

  std::uint32_t take() {
    const auto next = free.next();
    if (!next) return 0;
    occupy_block(next->block.value);
    free.taken(next->block);
    return next->block.value;
  }
  void occupy_block(std::uint32_t id) {
    word(id).store(BlockWord::make(BlockState::filling, generation(id) + 1, 1).bits);
  }
  void give_back(std::uint32_t id) {
    word(id).store(BlockWord::make(BlockState::free, generation(id), 0).bits);
    free.given_back(BlockId{id}, generation(id));
  }

  PoolMemory memory;
  FreeBlocks free;
};

TEST(FreeBlocks, UnusedBlocksComeByAscendingId) {
  Hints h(5);
  EXPECT_EQ(numbers(h.free.order()), (Ids{1, 2, 3, 4}));
  for (const std::uint32_t id : {1, 2, 3, 4, 0}) EXPECT_EQ(h.take(), id);
}

TEST(FreeBlocks, LastGivenBackComesFirst) {
  Hints h(6);
  for (int i = 0; i < 4; ++i) h.take();
  h.give_back(2);
  h.give_back(1);
  h.give_back(4);
  EXPECT_EQ(numbers(h.free.order()), (Ids{4, 1, 2, 5}));
  for (const std::uint32_t id : {4, 1, 2, 5, 0}) EXPECT_EQ(h.take(), id);
}

TEST(FreeBlocks, StaleBitIsSkippedAndCleared) {
  Hints h(4);
  h.occupy_block(1);  // by a process that was killed before it cleared the bit
  EXPECT_EQ(h.take(), 2u);
  EXPECT_EQ(h.memory.bitmap(Tier::device)[0].load(), 0b1000u);
}

TEST(FreeBlocks, OwnBlockTakenByAnotherIsSkipped) {
  Hints h(4);
  h.take();
  h.take();
  h.give_back(1);
  h.give_back(2);
  h.occupy_block(2);
  EXPECT_EQ(numbers(h.free.order()), (Ids{1, 3}));
  EXPECT_EQ(h.take(), 1u);
}

TEST(FreeBlocks, AFreedBlockThatAnotherProcessUsedIsFoundByItsBitOnly) {
  Hints h(4);
  h.take();
  h.give_back(1);
  h.occupy_block(1);
  h.word(1).store(BlockWord::make(BlockState::free, h.generation(1), 0).bits);
  h.free.announce(BlockId{1});
  EXPECT_EQ(h.take(), 1u) << "found by its bit, not in the private stack";
}

TEST(FreeBlocks, AnnouncedBlockIsFoundThroughBothLevels) {
  Hints h(64 * 512 * 2 + 10);  // three summary words
  auto* bitmap = h.memory.bitmap(Tier::device);
  auto* summary = h.memory.summary(Tier::device);
  for (std::size_t i = 0; i < h.memory.tier_layout(Tier::device).bitmap_words; ++i)
    bitmap[i].store(0);
  EXPECT_EQ(h.take(), 0u);
  for (std::size_t i = 0; i < 3; ++i) EXPECT_EQ(summary[i].load(), 0u);
  for (const std::uint32_t id : {65'540u, 32'770u, 511u, 512u}) h.free.announce(BlockId{id});
  for (const std::uint32_t id : {511u, 512u, 32'770u, 65'540u, 0u}) EXPECT_EQ(h.take(), id);
}

TEST(FreeBlocks, FindLostRestoresLostHints) {
  Hints h(130);
  EXPECT_EQ(h.free.find_lost(), 0u);
  h.memory.summary(Tier::device)[0].store(0);
  EXPECT_EQ(h.take(), 0u);
  EXPECT_EQ(h.free.find_lost(), 1u)
      << "one per group: its summary bit leads to the other blocks of the group";
  EXPECT_EQ(h.take(), 1u);
  EXPECT_EQ(h.free.find_lost(), 0u);
}

TEST(FreeBlocks, TheStackOfOwnBlocksStaysBounded) {
  Hints h(3);
  for (int i = 0; i < 10'000; ++i) {
    const std::uint32_t id = h.take();
    ASSERT_NE(id, 0u);
    h.give_back(id);
    h.occupy_block(id);  // another process uses it once
    h.word(id).store(BlockWord::make(BlockState::free, h.generation(id), 0).bits);
  }
  EXPECT_EQ(h.free.order().size(), 2u);
}

}  // namespace
}  // namespace kvhive::testing
