#include "pool/care/repair.hpp"

#include <gmock/gmock.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <random>

#include "pool/block_pool.hpp"
#include "pool/care/reaper.hpp"
#include "tests/support/child_process.hpp"
#include "tests/support/private_pool.hpp"
#include "tests/support/request.hpp"
#include "tests/support/sanitizers.hpp"
#include "tests/support/shared_value.hpp"

namespace kvhive::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using Ids = std::vector<std::uint32_t>;

/// A pool that slot 0 uses, as the keeper's table says. Blocks 1 to 3 are held, 4 is filling, 5 and
/// 6 are idle.
class Repair : public ::testing::Test {
 protected:
  Repair() : memory(private_pool(small_geometry(16, 8))), pool(memory, ProcessSlot{0}) {
    occupy(memory, ProcessSlot{0});
    owners[0] = {SlotOwner::Use::used, 1};
    held = admit(pool, Prompt(pool, counting(0, 14))).value();
    leave_idle(pool, Prompt(pool, counting(500, 8)));
  }

  BlockDescriptor& descriptor(std::uint32_t id) { return memory.descriptors()[id]; }
  BlockWord word(std::uint32_t id) { return {descriptor(id).word.load()}; }
  void set_word(std::uint32_t id, BlockState state, std::uint32_t holders) {
    descriptor(id).word.store(BlockWord::make(state, word(id).generation(), holders).bits);
  }
  std::vector<std::string> violations() {
    return fsck(memory, Moment::quiescent, &owners).violations;
  }
  RepairReport mend() { return repair(memory, owners); }
  /// Releases all, and checks that every block that is not retired can be allocated.
  void expect_all_there() {
    pool.release(held.blocks);
    for (const Tier tier : {Tier::device, Tier::host}) {
      EXPECT_EQ(pool.available(tier), pool.capacity(tier));
      const auto all = pool.allocate(tier, pool.capacity(tier));
      ASSERT_TRUE(all.has_value()) << all.error().text;
      pool.release(*all);
    }
    EXPECT_THAT(violations(), IsEmpty());
  }

  PoolMemory memory;
  BlockPool pool;
  SlotOwners owners{};
  Request held;
};

TEST_F(Repair, LeavesASoundPoolAlone) {
  EXPECT_THAT(violations(), IsEmpty());
  EXPECT_EQ(mend().sum(), 0u);
  EXPECT_EQ(numbers(pool.free_queue(Tier::device)), (Ids{7, 8, 9, 10, 11, 12, 13, 14, 15, 6, 5}));
  expect_all_there();
}

TEST_F(Repair, RetiresBlocksWithImpossibleWords) {
  set_word(10, BlockState::free, 1);
  set_word(11, BlockState(6), 0);
  set_word(12, BlockState::filling, 0);
  set_word(4, BlockState::free, 1);  // held by this process, unpublished
  EXPECT_EQ(mend().retired, 4u);
  for (const std::uint32_t id : {4u, 10u, 11u, 12u}) {
    EXPECT_EQ(word(id).state(), BlockState::retired);
    EXPECT_EQ(word(id).holders(), 0u);
  }
  EXPECT_THAT(violations(), IsEmpty());
  EXPECT_EQ(pool.capacity(Tier::device), 11u);
  expect_all_there();
}

TEST_F(Repair, RetiresBlocksWithCorruptNamesEvenWhileTheyAreHeld) {
  const Prompt first(pool, counting(0, 14)), second(pool, counting(500, 8));
  memory.token_row(BlockId{2})[0].fetch_xor(1);
  descriptor(6).depth.store(7);
  EXPECT_EQ(mend().retired, 2u);
  EXPECT_EQ(word(2).state(), BlockState::retired);
  EXPECT_EQ(word(6).state(), BlockState::retired);
  EXPECT_THAT(violations(), IsEmpty());
  for (const auto& [prompt, block] : {std::pair{&first, 1u}, std::pair{&second, 5u}}) {
    const PrefixHit hit = match_all(pool, *prompt);
    EXPECT_EQ(numbers(hit.blocks), Ids{block}) << "the parent is sound";
    pool.release(hit.blocks);
  }
  expect_all_there();
}

TEST_F(Repair, ARetiredBlockIsNotFoundEvenIfItsWordIsCorruptedAgain) {
  const Prompt prompt(pool, counting(500, 8));
  descriptor(5).depth.store(7);
  mend();
  descriptor(5).word.fetch_xor(1ull << 32);  // retired -> ready
  EXPECT_THAT(match_all(pool, prompt).blocks, IsEmpty());
  EXPECT_THAT(violations(), Not(IsEmpty()));
  mend();
  EXPECT_THAT(violations(), IsEmpty());
  EXPECT_EQ(word(5).state(), BlockState::retired);
}

TEST_F(Repair, RebuildsALostIndex) {
  const Prompt prompt(pool, counting(500, 8));
  for (std::size_t b = 0; b < memory.layout().index_buckets; ++b)
    for (auto& way : memory.index()[b].way) way.store(0);
  EXPECT_EQ(fsck(memory).unhinted, 5u);
  EXPECT_EQ(mend().hints_restored, 5u);
  EXPECT_EQ(fsck(memory).unhinted, 0u);
  const PrefixHit hit = match_all(pool, prompt);
  EXPECT_EQ(numbers(hit.blocks), (Ids{5, 6}));
  pool.release(hit.blocks);
}

TEST_F(Repair, DropsStaleDoubleAndOutOfRangeHints) {
  const Hash128 name{descriptor(5).hash_low.load(), descriptor(5).hash_high.load()};
  IndexBucket& bucket = memory.index()[name.low & (memory.layout().index_buckets - 1)];
  const std::uint64_t tag = name.high & 0xffffffff00000000ull;
  bucket.way[5].store(tag | 5);        // a second hint
  bucket.way[6].store(tag | 9);        // a free block
  bucket.way[7].store(tag | 999'999);  // beyond the pool
  const FsckReport report = fsck(memory);
  EXPECT_THAT(report.violations, ::testing::UnorderedElementsAre(HasSubstr("two hints"),
                                                                 HasSubstr("beyond the pool")));
  EXPECT_EQ(report.stale_hints, 1u);
  EXPECT_EQ(mend().hints_dropped, 3u);
  EXPECT_THAT(violations(), IsEmpty());
  EXPECT_EQ(fsck(memory).stale_hints, 0u);
}

TEST_F(Repair, ListsLostFreeBlocksAndCutsBitsBeyondTheEnd) {
  memory.bitmap(Tier::device)[0].store(1ull << 40);
  memory.summary(Tier::device)[0].fetch_or(1ull << 9);
  memory.bitmap(Tier::host)[0].store(0);
  EXPECT_THAT(violations(), Not(IsEmpty()));
  const RepairReport report = mend();
  EXPECT_EQ(report.free_listed, 9u + 8u);
  EXPECT_EQ(report.fields, 2u);
  EXPECT_THAT(violations(), IsEmpty());
  expect_all_there();
}

TEST_F(Repair, RestampsBlocksWithStampsFromTheFuture) {
  descriptor(5).stamp.store(1ull << 50);
  EXPECT_EQ(mend().restamped, 1u);
  EXPECT_THAT(violations(), IsEmpty());
  expect_all_there();
}

TEST_F(Repair, CorrectsCountersOutOfRange) {
  TierControl& order = memory.control().tiers[0];
  const std::uint64_t tail = order.tail.load(), one = 1;
  for (const std::uint64_t wild : {tail ^ 2, tail | one << 60, tail | one << 63}) {
    for (auto* end : {&order.lanes[0].head, &order.tail}) {
      end->store(wild);
      mend();
      EXPECT_THAT(violations(), IsEmpty());
    }
  }
  for (const std::uint64_t wild : {1ull, 1ull << 62, 1ull << 63 | 5}) {
    memory.control().next_serial.store(wild);
    EXPECT_THAT(violations(), Not(IsEmpty()));
    mend();
    EXPECT_THAT(violations(), IsEmpty());
    EXPECT_EQ(memory.control().next_serial.load(), 6u);
  }
  EXPECT_EQ(fsck(memory).ready, 5u) << "no block was retired";
  expect_all_there();
}

TEST_F(Repair, CountsUsedBlocksAnew) {
  memory.control().processes[0].counters.used[0].fetch_xor(1ll << 40);
  EXPECT_EQ(pool.available(Tier::device), 0u);
  mend();
  EXPECT_EQ(pool.available(Tier::device), 11u);
  expect_all_there();
}

TEST_F(Repair, ClearsHolderBitsOfEmptySlots) {
  descriptor(5).word.fetch_or(holder_bit(ProcessSlot{9}) | 1ull << 31 | 1ull << 35);
  set_word(10, BlockState::filling, holder_bit(ProcessSlot{9}));
  const RepairReport report = mend();
  EXPECT_EQ(report.holders, 2u);
  EXPECT_EQ(report.retired, 0u);
  EXPECT_EQ(word(5).holders(), 0u);
  EXPECT_EQ(word(10).state(), BlockState::free);
  EXPECT_THAT(violations(), IsEmpty());
  expect_all_there();
}

TEST_F(Repair, LeavesUnsweptSlotsToTheReaper) {
  owners[3] = {SlotOwner::Use::unswept, 0};
  occupy(memory, ProcessSlot{3}, 77);
  descriptor(5).word.fetch_or(holder_bit(ProcessSlot{3}));
  EXPECT_EQ(mend().sum(), 0u);
  EXPECT_EQ(word(5).holders(), holder_bit(ProcessSlot{3}));
  reap(memory, ProcessSlot{3});
}

TEST_F(Repair, CorrectsTheSlotTableFromTheKeepersOwners) {
  occupy(memory, ProcessSlot{7}, 4711);
  occupy(memory, ProcessSlot{0}, 5);
  EXPECT_THAT(violations(),
              ::testing::UnorderedElementsAre(HasSubstr("slot 0"), HasSubstr("slot 7")));
  EXPECT_EQ(mend().fields, 2u);
  EXPECT_EQ(memory.control().processes[0].pid.load(), 1u);
  EXPECT_EQ(memory.control().processes[7].pid.load(), 0u);
  EXPECT_THAT(violations(), IsEmpty());
}

TEST_F(Repair, RetiresTheNullBlock) {
  set_word(0, BlockState::ready, 0);
  mend();
  EXPECT_THAT(violations(), IsEmpty());
  EXPECT_EQ(word(0).state(), BlockState::retired);
}

/// A repair that was killed at any moment is simply run again.
TEST_F(Repair, MayBeKilledAnywhere) {
  if (kUnderThreadSanitizer) GTEST_SKIP() << "forks";
  enum : int { not_begun, repairs, done };
  SharedValue<std::atomic<int>> phase;
  std::mt19937 random{7};
  std::chrono::nanoseconds length{};  // of a repair that is not killed
  constexpr int kLeast = 20;
  int killed = 0;  // while it repaired
  for (int round = 0; round < 60 || (killed < kLeast && round < 600); ++round) {
    for (std::size_t b = 0; b < memory.layout().index_buckets; ++b)
      memory.index()[b].way[0].store(std::uint64_t(round) << 40 | b);
    memory.bitmap(Tier::device)[0].store(0);
    descriptor(5).stamp.store(1ull << 50);
    if (round % 20 == 0 && round < 60)
      set_word(10 + std::uint32_t(round) / 20, BlockState::free, 1);
    memory.control().tiers[0].tail.store(1);
    *phase = not_begun;
    {
      ChildProcess child([&] {
        *phase = repairs;
        repair(memory, owners);
        *phase = done;
        pause();
      });
      while (*phase == not_begun) continue;
      const auto start = std::chrono::steady_clock::now();
      const auto delay = length * (random() % 1000) / 1000;
      while (round == 0 ? *phase != done : std::chrono::steady_clock::now() - start < delay)
        continue;
      if (round == 0) length = std::chrono::steady_clock::now() - start;
      child.kill_and_wait();
    }
    killed += *phase == repairs;
    mend();
    ASSERT_THAT(violations(), IsEmpty()) << "round " << round;
  }
  EXPECT_GE(killed, kLeast) << "most kills came before or after the repair";
  expect_all_there();
}

}  // namespace
}  // namespace kvhive::testing
