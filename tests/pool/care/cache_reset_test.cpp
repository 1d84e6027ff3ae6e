#include "pool/care/cache_reset.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "hashing/sequence_names.hpp"
#include "pool/block_pool.hpp"
#include "pool/care/fsck.hpp"
#include "pool/care/repair.hpp"
#include "tests/support/cache_groups.hpp"
#include "tests/support/private_pool.hpp"
#include "tests/support/request.hpp"

namespace kvhive::testing {
namespace {

using ::testing::IsEmpty;
using ::testing::SizeIs;

/// Device blocks 1 to 12 and host blocks 13 to 16, of four tokens each; two processes.
class CacheResetTest : public ::testing::Test {
 protected:
  CacheResetTest() {
    for (const ProcessSlot slot : {ProcessSlot{0}, ProcessSlot{1}}) occupy(memory_, slot);
  }
  void TearDown() override { EXPECT_THAT(fsck(memory_).violations, IsEmpty()); }

  Prompt prompt(TokenId first = 0, std::size_t blocks = 3) {
    return {pool_, counting(first, blocks * 4 + 1)};
  }
  std::size_t found(BlockPool& pool, const Prompt& prompt, Tier tier = Tier::device) {
    const PrefixHit hit = match_all(pool, prompt, tier);
    pool.cancel(hit);
    return hit.blocks.size();
  }

  PoolMemory memory_ = private_pool(small_geometry(13, 4));
  BlockPool pool_{memory_, ProcessSlot{0}};
  BlockPool peer_{memory_, ProcessSlot{1}};
};

TEST_F(CacheResetTest, WhatWasCachedIsFoundNoMoreAndWhatComesThenIs) {
  leave_idle(pool_, prompt());
  EXPECT_EQ(found(peer_, prompt()), 3u);
  const CacheReset done = reset_cache(memory_);
  EXPECT_EQ(done.resets.value, 1u);
  EXPECT_EQ(done.forgotten, 3u);
  for (BlockPool* pool : {&pool_, &peer_}) EXPECT_EQ(found(*pool, prompt()), 0u);
  leave_idle(peer_, prompt());
  EXPECT_EQ(found(pool_, prompt()), 3u);
  EXPECT_EQ(reset_cache(memory_).forgotten, 3u) << "what an earlier reset forgot counts no more";
  EXPECT_EQ(found(pool_, prompt()), 0u);
}

/// vLLM: reset_prefix_cache leaves the free queue as it is.
TEST_F(CacheResetTest, TheReleaseOrderStays) {
  leave_idle(pool_, prompt());
  leave_idle(peer_, prompt(100, 2));
  const auto before = pool_.free_queue(Tier::device);
  reset_cache(memory_);
  EXPECT_EQ(pool_.free_queue(Tier::device), before);
  EXPECT_EQ(pool_.available(Tier::device), 12u);
  EXPECT_THAT(pool_.allocate(Tier::device, 12).value(), SizeIs(12));
}

TEST_F(CacheResetTest, WhoHoldsBlocksKeepsThemAndPublishesForNobody) {
  const Prompt whole = prompt(0, 3);
  const Request running = admit(pool_, prompt(0, 1)).value();
  reset_cache(memory_);
  const auto more = pool_.allocate(Tier::device, 2).value();
  const Prefix end = pool_.publish(running.end, more, whole.names(1, 2), whole.of_blocks(1, 2));
  EXPECT_EQ(end.depth, 3u);
  EXPECT_EQ(found(peer_, whole), 0u);
  EXPECT_EQ(found(pool_, whole), 0u);
  pool_.release(more);
  pool_.release(running.blocks);
}

/// Each block of such a group is found by itself: also what a sequence publishes that ran then.
TEST_F(CacheResetTest, BlocksOfAWindowAreForgottenToo) {
  PoolGeometry geometry = small_geometry(13, 0);
  geometry.models[0].groups = groups_of({window(9)});
  const PoolMemory memory = private_pool(geometry);
  occupy(memory, ProcessSlot{0});
  BlockPool pool(memory, ProcessSlot{0});
  const std::vector<TokenId> tokens = counting(0, 12);
  SequenceNames names(geometry.models[0].groups, {}, 4);
  names.extend(pool.hasher(), tokens);
  const auto blocks = pool.allocate(Tier::device, 3).value();
  const auto publish = [&](std::size_t i, Resets resets) {
    pool.publish(BlockPool::root({}, {}, static_cast<std::uint32_t>(i), resets),
                 std::span(blocks).subspan(i, 1), names.names({}).subspan(i, 1),
                 std::span(tokens).subspan(i * 4, 4), names.extras({}).subspan(i, 1));
  };
  const auto is_found = [&](std::size_t i) {
    const PrefixHit hit = pool.match(
        Tier::device, BlockPool::root({}, {}, static_cast<std::uint32_t>(i), memory.resets()),
        names.names({}).subspan(i, 1), std::span(tokens).subspan(i * 4, 4),
        names.extras({}).subspan(i, 1));
    pool.cancel(hit);
    return !hit.blocks.empty();
  };
  publish(0, memory.resets());
  EXPECT_TRUE(is_found(0));
  const Resets before = memory.resets();
  reset_cache(memory);
  publish(1, before);
  publish(2, memory.resets());
  EXPECT_FALSE(is_found(0));
  EXPECT_FALSE(is_found(1));
  EXPECT_TRUE(is_found(2));
  pool.release(blocks);
  EXPECT_THAT(fsck(memory).violations, IsEmpty());
}

TEST_F(CacheResetTest, NothingForgottenMovesToTheHostTier) {
  leave_idle(pool_, prompt());
  reset_cache(memory_);
  leave_idle(pool_, prompt(100, 2));
  std::vector<Evicted> evicted;
  const auto taken = pool_.allocate(Tier::device, 12, {}, &evicted).value();
  ASSERT_THAT(evicted, SizeIs(5));
  const auto demotions = pool_.demote(evicted);
  EXPECT_THAT(demotions, SizeIs(2));
  pool_.finish_demotion(demotions);
  EXPECT_EQ(found(peer_, prompt(100, 2), Tier::host), 2u);
  pool_.release(taken);
}

TEST_F(CacheResetTest, ALostBitOfTheNumberIsMended) {
  reset_cache(memory_);
  reset_cache(memory_);
  leave_idle(pool_, prompt());
  leave_idle(pool_, prompt(100));
  memory_.control().resets.store(0);
  EXPECT_FALSE(fsck(memory_).is_clean());
  EXPECT_GT(repair(memory_, {}).fields, 0u);
  EXPECT_EQ(memory_.resets().value, 2u);
  EXPECT_EQ(found(pool_, prompt()), 3u);
  memory_.control().first_uid.store(1ull << 40);
  EXPECT_FALSE(fsck(memory_).is_clean());
  EXPECT_GT(repair(memory_, {}).fields, 0u);
}

}  // namespace
}  // namespace kvhive::testing
