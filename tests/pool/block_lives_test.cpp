#include "pool/block_lives.hpp"

#include <gmock/gmock.h>

#include <algorithm>
#include <thread>

#include "base/stop_watch.hpp"
#include "pool/block_pool.hpp"
#include "pool/care/cache_reset.hpp"
#include "tests/support/child_process.hpp"
#include "tests/support/private_pool.hpp"
#include "tests/support/request.hpp"

namespace kvhive::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr std::uint64_t kSecond = 1'000'000'000;

PoolGeometry measured(std::uint32_t blocks, std::uint32_t stride = 1) {
  PoolGeometry geometry = small_geometry(blocks);
  geometry.life_stride = stride;
  return geometry;
}

class BlockLivesTest : public ::testing::Test {
 protected:
  const PoolMemory memory_ = private_pool(measured(8));
  const BlockLives lives_{memory_};
  const BlockId block_{3};
};

TEST_F(BlockLivesTest, NobodyHasSeenTheFirstOneBegin) {
  EXPECT_FALSE(lives_.renew(block_, 1 * kSecond));
  EXPECT_TRUE(lives_.renew(block_, 2 * kSecond));
}

TEST_F(BlockLivesTest, ABlockThatNobodyUsesIsIdleAllItsLife) {
  lives_.renew(block_, 1 * kSecond);
  const auto life = lives_.renew(block_, 6 * kSecond);
  ASSERT_TRUE(life);
  EXPECT_EQ(life->length, 5 * kSecond);
  EXPECT_EQ(life->idle, 5 * kSecond);
  EXPECT_THAT(life->gaps(), IsEmpty());
}

TEST_F(BlockLivesTest, IdleSinceItsLastUse) {
  lives_.renew(block_, 1 * kSecond);
  lives_.use(block_, 2 * kSecond);
  const auto life = lives_.renew(block_, 5 * kSecond);
  ASSERT_TRUE(life);
  EXPECT_EQ(life->length, 4 * kSecond);
  EXPECT_EQ(life->idle, 3 * kSecond);
  EXPECT_THAT(life->gaps(), IsEmpty()) << "one use has no gap";
}

TEST_F(BlockLivesTest, TellsTheGapsBetweenUses) {
  lives_.renew(block_, 1 * kSecond);
  for (const std::uint64_t tenth : {10, 25, 40, 65}) lives_.use(block_, kSecond * tenth / 10);
  EXPECT_THAT(lives_.renew(block_, 9 * kSecond)->gaps(),
              ElementsAre(kSecond * 3 / 2, kSecond * 3 / 2, kSecond * 5 / 2));
}

TEST_F(BlockLivesTest, KeepsTheLastFourUses) {
  lives_.renew(block_, 1 * kSecond);
  for (std::uint64_t i = 1; i <= 5; ++i) lives_.use(block_, i * i * kSecond);
  const auto life = lives_.renew(block_, 30 * kSecond);
  EXPECT_THAT(life->gaps(), ElementsAre(5 * kSecond, 7 * kSecond, 9 * kSecond));
  EXPECT_EQ(life->idle, 5 * kSecond);
}

TEST_F(BlockLivesTest, EachLifeHasItsOwnUses) {
  lives_.renew(block_, 1 * kSecond);
  for (const std::uint64_t i : {2, 3, 4}) lives_.use(block_, i * kSecond);
  lives_.renew(block_, 5 * kSecond);
  lives_.use(block_, 7 * kSecond);
  const auto life = lives_.renew(block_, 8 * kSecond);
  EXPECT_EQ(life->length, 3 * kSecond);
  EXPECT_EQ(life->idle, 1 * kSecond);
  EXPECT_THAT(life->gaps(), IsEmpty());
}

TEST_F(BlockLivesTest, AHugeTimeIsATimeLikeOthers) {
  lives_.renew(block_, 1 * kSecond);
  EXPECT_EQ(lives_.renew(block_, 9'999'999'999'999'999)->length, 9'999'998'999'999'999u);
}

TEST_F(BlockLivesTest, CorruptTimesMakeNoNonsense) {
  lives_.renew(block_, 4 * kSecond);
  lives_.use(block_, 2 * kSecond);   // before it began
  lives_.use(block_, 50 * kSecond);  // after it ended
  const auto life = lives_.renew(block_, 6 * kSecond);
  EXPECT_EQ(life->length, 2 * kSecond);
  EXPECT_EQ(life->idle, 2 * kSecond);
  EXPECT_FALSE(lives_.renew(block_, 5 * kSecond)) << "it ended before it began";
}

TEST_F(BlockLivesTest, AResetForgetsTheLivesUpToThen) {
  for (std::uint32_t id = 1; id < 8; ++id) lives_.renew(BlockId{id}, kSecond);
  reset_cache(memory_);
  lives_.use(block_, 2 * kSecond);
  EXPECT_FALSE(lives_.renew(block_, 3 * kSecond));
  EXPECT_EQ(lives_.renew(block_, 4 * kSecond)->length, kSecond) << "it goes on with the next";
}

/// Harder than in a pool, where a process uses only what it holds.
TEST_F(BlockLivesTest, ProcessesUseAndRenewAtTheSameTime) {
  lives_.renew(block_, monotonic_ns());
  ChildProcess user([&] {
    while (true) lives_.use(std::vector{block_, BlockId{4}});
  });
  std::size_t gaps = 0;
  while (gaps < 2'000) {
    const auto life = lives_.renew(block_, monotonic_ns());
    ASSERT_TRUE(life);
    ASSERT_LE(life->idle, life->length);
    for (const std::uint64_t gap : life->gaps()) ASSERT_LE(gap, life->length);
    gaps += life->gaps().size();
    if (life->gaps().empty()) std::this_thread::yield();  // the other process may wait for this CPU
  }
  EXPECT_TRUE(user.kill_and_wait());
}

// -- which blocks ---------------------------------------------------------------------------------

std::size_t count_measured(const PoolMemory& memory) {
  const BlockLives lives(memory);
  std::size_t count = 0;
  for (std::uint32_t id = 0; id < memory.geometry().total_blocks(); ++id)
    count += lives.is_measured(BlockId{id});
  return count;
}

TEST(BlockLivesSample, IsNoneWithoutAStride) {
  const PoolMemory memory = private_pool(small_geometry(500));
  EXPECT_EQ(count_measured(memory), 0u);
  EXPECT_FALSE(BlockLives(memory).are_measured());
  BlockLives(memory).use(std::vector{BlockId{1}});
  reset_cache(memory);
}

TEST(BlockLivesSample, IsOneInEachStrideOfTheDeviceTier) {
  EXPECT_EQ(count_measured(private_pool(measured(500))), 499u) << "all but the null block";
  EXPECT_EQ(count_measured(private_pool(measured(500, 100))), 5u);
  EXPECT_EQ(count_measured(private_pool(measured(48, 100))), 1u) << "the last may be shorter";
  EXPECT_EQ(count_measured(private_pool(measured(501, 100))), 6u);
  PoolGeometry with_host = measured(500, 5);
  with_host.host_blocks = 200;
  EXPECT_EQ(count_measured(private_pool(with_host)), 100u);
}

/// A stride that fits the length of prompts must not measure their beginnings only.
TEST(BlockLivesSample, IsAtAnotherPlaceInEachStrideAndEachPool) {
  const auto places = [](const PoolMemory& memory) {
    std::vector<std::uint32_t> found;
    for (std::uint32_t id = 0; id < 3200; ++id)
      if (BlockLives(memory).is_measured(BlockId{id})) found.push_back(id % 32);
    return found;
  };
  const auto first = places(private_pool(measured(3200, 32)));
  ASSERT_EQ(first.size(), 100u);
  for (std::uint32_t place = 0; place < 32; ++place)
    EXPECT_LT(std::ranges::count(first, place), 20) << place;
  EXPECT_NE(first, places(private_pool(measured(3200, 32))));
}

// -- in a pool ------------------------------------------------------------------------------------

struct Observed {
  explicit Observed(SlotCounters& counters) {
    for (std::size_t i = 0; i < kAllHistogramCells; ++i) values.cells[i] = counters.cells[i].load();
  }
  std::uint64_t count(HistogramName name) const { return values[name].count(); }
  HistogramValues values;
};

TEST(BlockLivesOfAPool, AreToldByTheProcessThatTakesTheBlock) {
  const PoolMemory memory = private_pool(measured(5));
  BlockPool first(memory, ProcessSlot{0}), second(memory, ProcessSlot{1});
  const Prompt prompt(first, counting(0, 16));
  leave_idle(first, prompt);
  EXPECT_EQ(Observed(first.counters()).count("kv_block_lifetime_seconds"), 0u);

  for (int i = 0; i < 3; ++i) {
    const PrefixHit hit = match_all(i == 1 ? first : second, prompt);
    (i == 1 ? first : second).touch(hit.blocks);
    (i == 1 ? first : second).release(hit.blocks);
  }
  second.release(second.allocate(Tier::device, 4).value());
  EXPECT_EQ(Observed(first.counters()).count("kv_block_lifetime_seconds"), 0u);
  const Observed observed(second.counters());
  EXPECT_EQ(observed.count("kv_block_lifetime_seconds"), 4u);
  EXPECT_EQ(observed.count("kv_block_idle_before_evict_seconds"), 4u);
  EXPECT_EQ(observed.count("kv_block_reuse_gap_seconds"), 8u) << "two gaps of each";
}

/// A request that cannot be admitted is looked up in every step, and uses nothing.
TEST(BlockLivesOfAPool, AMatchAloneIsNoUse) {
  const PoolMemory memory = private_pool(measured(5));
  BlockPool pool(memory, ProcessSlot{0});
  const Prompt prompt(pool, counting(0, 16));
  leave_idle(pool, prompt);
  for (int i = 0; i < 3; ++i) pool.cancel(match_all(pool, prompt));
  pool.release(pool.allocate(Tier::device, 4).value());
  const Observed observed(pool.counters());
  EXPECT_EQ(observed.count("kv_block_lifetime_seconds"), 4u);
  EXPECT_EQ(observed.count("kv_block_reuse_gap_seconds"), 0u);
}

/// A full pool refuses again and again, until enough requests are preempted.
TEST(BlockLivesOfAPool, AnAllocationThatFailsEndsNone) {
  const PoolMemory memory = private_pool(measured(5));
  BlockPool pool(memory, ProcessSlot{0});
  pool.release(pool.allocate(Tier::device, 4).value());
  const auto held = pool.allocate(Tier::device, 1).value();
  EXPECT_EQ(Observed(pool.counters()).count("kv_block_lifetime_seconds"), 1u);
  EXPECT_FALSE(pool.allocate(Tier::device, 4));
  EXPECT_EQ(Observed(pool.counters()).count("kv_block_lifetime_seconds"), 1u);
}

TEST(BlockLivesOfAPool, AlsoOfBlocksThatWereNeverPublished) {
  const PoolMemory memory = private_pool(measured(5));
  BlockPool pool(memory, ProcessSlot{0});
  for (int i = 0; i < 3; ++i) pool.release(pool.allocate(Tier::device, 4).value());
  EXPECT_EQ(Observed(pool.counters()).count("kv_block_lifetime_seconds"), 8u);
}

TEST(BlockLivesOfAPool, NothingIsToldWithoutASample) {
  const PoolMemory memory = private_pool(small_geometry(5));
  BlockPool pool(memory, ProcessSlot{0});
  const Prompt prompt(pool, counting(0, 16));
  for (int i = 0; i < 3; ++i) {
    leave_idle(pool, prompt);
    const PrefixHit hit = match_all(pool, prompt);
    pool.touch(hit.blocks);
    pool.release(hit.blocks);
    pool.release(pool.allocate(Tier::device, 4).value());
  }
  EXPECT_EQ(Observed(pool.counters()).count("kv_block_lifetime_seconds"), 0u);
}

}  // namespace
}  // namespace kvhive::testing
