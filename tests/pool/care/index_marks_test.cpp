#include "pool/care/index_marks.hpp"

#include <gmock/gmock.h>

#include <atomic>
#include <barrier>
#include <thread>
#include <vector>

#include "pool/block_pool.hpp"
#include "pool/care/fsck.hpp"
#include "tests/support/private_pool.hpp"
#include "tests/support/request.hpp"
#include "tests/support/sanitizers.hpp"

namespace kvhive::testing {
namespace {

using ::testing::IsEmpty;

/// Computes the same prompt `times` times at once, as processes do that do not wait for each other,
/// and releases the blocks.
void compute_at_once(BlockPool& pool, const Prompt& prompt, std::size_t times) {
  std::vector<BlockId> all;
  for (std::size_t i = 0; i < times; ++i) {
    const auto blocks = pool.allocate(Tier::device, prompt.full_blocks()).value();
    pool.publish(BlockPool::root({}), blocks, prompt.chain, prompt.tokens);
    all.insert(all.end(), blocks.begin(), blocks.end());
  }
  pool.release(all);
}

/// Publishes prompts of two blocks, each `times` times, from the prompt's number `first` on.
void turn_over(BlockPool& pool, TokenId first, std::size_t blocks, std::size_t times) {
  for (std::size_t done = 0; done < blocks; done += 2 * times, first += 100)
    compute_at_once(pool, Prompt(pool, counting(first, 8)), times);
}

/// Expects that every hint in the index leads to its block: fsck counts a hint in a second bucket
/// as stale if the first bucket has no mark.
void expect_all_reachable(const PoolMemory& memory) {
  const FsckReport report = fsck(memory);
  EXPECT_THAT(report.violations, IsEmpty());
  EXPECT_EQ(report.stale_hints, 0u);
}

/// A prompt of one block whose two buckets differ. (The pool's secret is drawn at random.)
Prompt prompt_with_two_buckets(const BlockPool& pool, const PoolMemory& memory) {
  const std::size_t buckets = memory.layout().index_buckets;
  for (TokenId first = 0;; ++first) {
    Prompt prompt(pool, counting(first, 4));
    if (prompt.chain[0].low % buckets != prompt.chain[0].high % buckets) return prompt;
  }
}

/// A pool in which one prompt was computed ten times at once, so that its bucket has overflowed.
struct Overflowed {
  Overflowed() { compute_at_once(pool, prompt, 10); }

  PoolMemory memory = [] {
    PoolMemory made = private_pool(small_geometry(33));
    occupy(made, ProcessSlot{0});
    return made;
  }();
  BlockPool pool{memory, ProcessSlot{0}};
  PrefixIndex index{memory.index(), memory.layout().index_buckets};
  Prompt prompt = prompt_with_two_buckets(pool, memory);
  std::size_t home = index.home_of(prompt.chain[0]);
};

TEST(IndexMarks, AfterManyTurnoversOnlyNeededMarksAreLeft) {
  constexpr std::uint32_t kBlocks = 2049;
  const PoolMemory memory = private_pool(small_geometry(kBlocks));
  occupy(memory, ProcessSlot{0});
  BlockPool pool(memory, ProcessSlot{0});
  turn_over(pool, 0, 20 * kBlocks, 12);
  const IndexMarks before = count_marks(memory);
  EXPECT_GT(before.marked, before.buckets * 2 / 5) << "the load does not overflow many buckets";

  const std::uint64_t unhinted = fsck(memory).unhinted;  // there is no room for all duplicates
  EXPECT_GT(unhinted, 0u);
  EXPECT_EQ(fsck(memory).duplicates, unhinted);
  const ClearedMarks done = clear_marks(memory);
  EXPECT_EQ(fsck(memory).unhinted, unhinted);
  const IndexMarks after = count_marks(memory);
  EXPECT_EQ(done.restored, 0u);
  EXPECT_EQ(after.marked, before.marked - done.cleared);
  // Twelve hints of one name overflow a bucket: at most one mark for each twelve blocks is needed.
  EXPECT_LE(after.marked, kBlocks / 12 + 1);
  std::printf("marked buckets: %.1f %% before, %.1f %% after\n",
              100.0 * double(before.marked) / double(before.buckets),
              100.0 * double(after.marked) / double(after.buckets));
  expect_all_reachable(memory);

  turn_over(pool, 1'000'000, 2 * kBlocks, 1);  // without duplicates, no mark is needed any more
  clear_marks(memory);
  EXPECT_LE(count_marks(memory).marked, 2u);
  expect_all_reachable(memory);
}

TEST(IndexMarks, AnUnneededMarkIsClearedAndANeededOneStays) {
  Overflowed it;
  it.index.mark((it.home + 1) % 32);
  EXPECT_EQ(clear_marks(it.memory).cleared, 1u);
  EXPECT_TRUE(it.index.is_marked(it.home));
  expect_all_reachable(it.memory);
}

TEST(IndexMarks, AMarkThatAKilledCleanerClearedIsRestored) {
  Overflowed it;
  it.index.clear_mark(it.home);
  EXPECT_GT(fsck(it.memory).unhinted, 0u);
  EXPECT_EQ(clear_marks(it.memory).restored, 1u);
  EXPECT_EQ(fsck(it.memory).unhinted, 0u);
  expect_all_reachable(it.memory);
}

TEST(IndexMarks, AnEvictionRemovesAHintThatNoMarkLeadsTo) {
  Overflowed it;
  it.index.clear_mark(it.home);
  it.pool.release(it.pool.allocate(Tier::device, 32).value());
  it.index.mark(it.home);
  EXPECT_EQ(fsck(it.memory).stale_hints, 0u);
}

// The cleaner and the inserters go on until they have met often enough, however rarely each of them
// gets a CPU. They rest in between, so that a lost hint is seen before its block is evicted.
TEST(IndexMarks, ACleanerBesideInsertersLosesNoHint) {
  constexpr std::uint32_t kBlocks = 257, kThreads = 2;
  constexpr std::size_t kMarksToClear = kUnderSanitizer ? 300 : 10'000;
  const PoolMemory memory = private_pool(small_geometry(kBlocks));
  std::barrier rest(kThreads + 1);
  std::atomic<std::uint32_t> working{0};
  std::atomic<bool> is_over{false};
  std::vector<std::jthread> inserters;
  for (std::uint32_t slot = 0; slot < kThreads; ++slot) {
    occupy(memory, ProcessSlot{slot});
    inserters.emplace_back([&, slot] {
      BlockPool pool(memory, ProcessSlot{slot});
      for (int round = 0; rest.arrive_and_wait(), !is_over; ++round) {
        for (int i = 0; i < 16; ++i)
          compute_at_once(pool, Prompt(pool, counting((round * 16 + i) % 3'000 * 10, 8)), 1 + i);
        --working;
        rest.arrive_and_wait();
      }
    });
  }
  for (std::size_t cleared = 0; cleared < kMarksToClear && !HasFailure();) {
    working = kThreads;
    rest.arrive_and_wait();
    while (working != 0) cleared += clear_marks(memory).cleared;
    rest.arrive_and_wait();
    expect_all_reachable(memory);
  }
  is_over = true;
  rest.arrive_and_wait();
}

}  // namespace
}  // namespace kvhive::testing
