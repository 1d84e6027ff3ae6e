// Minimums and maximums of domains' blocks: who evicts whom, and what is counted.

#include "pool/eviction/lanes.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <random>

#include "pool/care/fsck.hpp"
#include "pool/care/reaper.hpp"
#include "pool/care/repair.hpp"
#include "pool/processes/process_slot.hpp"
#include "tests/support/keep_evicted.hpp"
#include "tests/support/private_pool.hpp"
#include "tests/support/request.hpp"

namespace kvhive::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr DomainId kOwner{0}, kQuiet{1}, kLimited{2}, kFlood{50};

PoolGeometry geometry_with(std::uint32_t blocks, BlockLimits quiet, BlockLimits limited = {}) {
  PoolGeometry geometry = small_geometry(blocks + 1);
  geometry.limits[kQuiet.value] = quiet;
  geometry.limits[kLimited.value] = limited;
  return geometry;
}

/// A pool of `blocks` device blocks, and one process.
class LanesTest : public ::testing::Test {
 protected:
  void make(std::uint32_t blocks, BlockLimits quiet, BlockLimits limited = {}) {
    make(geometry_with(blocks, quiet, limited));
  }
  void make(const PoolGeometry& geometry) {
    memory_.emplace(private_pool(geometry));
    sign_in(*memory_, ProcessSlot{0}, 0);
    pool_.emplace(*memory_, ProcessSlot{0});
  }
  void TearDown() override {
    if (!memory_) return;
    EXPECT_TRUE(is_counted_right());
    EXPECT_THAT(fsck(*memory_, Moment::quiescent).violations, IsEmpty());
  }
  BlockPool& pool() { return *pool_; }

  Prompt prompt(DomainId domain, TokenId first, std::size_t blocks) {
    return {pool(), counting(first * 1000, blocks * 4), domain};
  }
  /// Computes what is not cached, publishes it, and leaves it idle. Returns how much was cached.
  std::size_t serve(const Prompt& prompt) {
    Request request = begin(prompt);
    pool().release(request.blocks);
    return request.hits;
  }
  /// The same; the blocks stay held.
  Request begin(const Prompt& prompt) {
    const PrefixHit hit = match_all(pool(), prompt);
    const std::size_t found = hit.blocks.size(), missing = prompt.full_blocks() - found;
    const auto fresh = pool().allocate(Tier::device, missing, prompt.domain);
    KV_CHECK(fresh.has_value(), fresh.error().text);
    pool().publish(hit.end, *fresh, prompt.names(found, missing), prompt.of_blocks(found, missing));
    return {joined_ids(hit.blocks, *fresh), found, {}};
  }
  std::size_t cached(const Prompt& prompt) {
    const PrefixHit hit = match_all(pool(), prompt);
    pool().cancel(hit);
    return hit.blocks.size();
  }
  /// Serves other prompts, one after the other, `blocks` blocks in all.
  void flood(std::size_t blocks, DomainId domain = kFlood) {
    for (std::size_t done = 0; done < blocks; done += 2) serve(prompt(domain, ++flooded_, 2));
  }
  LaneTotals of(DomainId domain) { return pool().lanes().totals(pool().lanes().of(domain)); }
  bool is_counted_right() {
    const std::vector<LaneTotals> truth = count_lanes(*memory_);
    bool is_right = true;
    for (std::size_t lane = 0; lane < truth.size() && truth.size() > 1; ++lane)
      is_right &= lane_totals(memory_->control(), lane) == truth[lane];
    return is_right;
  }

  std::optional<PoolMemory> memory_;
  std::optional<BlockPool> pool_;
  TokenId flooded_ = 0;
};

// -- minimums -------------------------------------------------------------------------------------

TEST_F(LanesTest, AFloodDoesNotEvictADomainAtItsMinimum) {
  make(20, {.min = 6});
  const Prompt quiet = prompt(kQuiet, 1, 6);
  serve(quiet);
  flood(200);
  EXPECT_EQ(cached(quiet), 6u);
  EXPECT_EQ(of(kFlood).all(), 14u) << "the flood has all the rest";
}

TEST_F(LanesTest, WithoutAMinimumItDoes) {
  make(20, {.max = 20});  // counted, but not protected
  const Prompt quiet = prompt(kQuiet, 1, 6);
  serve(quiet);
  flood(200);
  EXPECT_EQ(cached(quiet), 0u);
}

TEST_F(LanesTest, WhatADomainHasAboveItsMinimumGoesInItsTurn) {
  make(20, {.min = 6});
  const Prompt old = prompt(kQuiet, 1, 4), young = prompt(kQuiet, 2, 6);
  serve(old);
  serve(young);
  flood(200);
  EXPECT_EQ(cached(old), 0u) << "the least recently released";
  EXPECT_EQ(cached(young), 6u);
}

TEST_F(LanesTest, BetweenDomainsAboveTheirMinimumsTheOldestGoesFirst) {
  make(8, {.min = 1}, {.min = 1});
  const Prompt first = prompt(kQuiet, 1, 2), second = prompt(kFlood, 2, 2),
               third = prompt(kLimited, 3, 2), fourth = prompt(kQuiet, 4, 2);
  for (const Prompt* each : {&first, &second, &third, &fourth}) serve(*each);
  std::vector<Evicted> evicted;
  const auto taken = pool().allocate(Tier::device, 6, kFlood, &evicted);
  ASSERT_TRUE(taken.has_value());
  // Ends before starts; of the third domain one block stays, though it is older than the fourth's.
  std::vector<std::uint64_t> domains;
  for (const Evicted& gone : evicted) domains.push_back(gone.domain.value);
  EXPECT_THAT(domains, ElementsAre(1, 1, 50, 50, 2, 1));
  EXPECT_EQ(cached(third), 1u);
  EXPECT_EQ(cached(fourth), 1u);
  for (const Evicted& gone : evicted) memory_->block(gone.block).set_domain(kFlood);
  pool().release(*taken);
}

TEST_F(LanesTest, AmongDomainsABlockThatWasHitIsSparedOnce) {
  PoolGeometry geometry = geometry_with(6, {.min = 1}, {.min = 1});
  geometry.eviction_policy = EvictionPolicy::second_chance;
  make(geometry);
  const Prompt first = prompt(kFlood, 1, 2), second = prompt(kFlood, 2, 2),
               third = prompt(kQuiet, 3, 2);
  for (const Prompt* each : {&first, &second, &third}) serve(*each);
  serve(first);
  serve(third);
  pool().release(pool().allocate(Tier::device, 2, kFlood).value());
  EXPECT_EQ(cached(first), 2u);
  EXPECT_EQ(cached(second), 0u) << "not as old as the first, but never hit";
  EXPECT_EQ(cached(third), 2u);
}

TEST_F(LanesTest, ADomainGrowsToItsMinimumFromOthersBlocks) {
  make(12, {.min = 6});
  const Prompt old = prompt(kQuiet, 1, 3);
  serve(old);
  flood(100);
  serve(prompt(kQuiet, 2, 3));
  EXPECT_EQ(cached(old), 3u) << "its own are the oldest of all, but it has a right to them";
  EXPECT_EQ(of(kQuiet).all(), 6u);
  serve(prompt(kQuiet, 3, 2));
  EXPECT_EQ(cached(old), 1u) << "now it has what it has a right to";
}

TEST_F(LanesTest, ADomainIsNotProtectedFromItself) {
  make(8, {.min = 8});
  serve(prompt(kQuiet, 1, 8));
  const Prompt next = prompt(kQuiet, 2, 5);
  serve(next);
  EXPECT_EQ(cached(next), 5u);
  EXPECT_FALSE(pool().allocate(Tier::device, 1, kFlood).has_value()) << "all are another's";
}

TEST_F(LanesTest, WhatOthersAreSureOfIsNotAvailable) {
  make(10, {.min = 4}, {.min = 2, .max = 5});
  EXPECT_EQ(pool().capacity(Tier::device, kFlood), 4u);
  EXPECT_EQ(pool().capacity(Tier::device, kQuiet), 8u);
  EXPECT_EQ(pool().capacity(Tier::device, kLimited), 5u);
  EXPECT_EQ(pool().available(Tier::device, kFlood), 10u) << "nobody uses them yet";
  serve(prompt(kQuiet, 1, 3));
  EXPECT_EQ(pool().available(Tier::device, kFlood), 7u);
  EXPECT_EQ(pool().available(Tier::device, kQuiet), 10u);
  const Request held = begin(prompt(kQuiet, 1, 3));
  EXPECT_EQ(pool().available(Tier::device, kFlood), 7u) << "held ones neither";
  EXPECT_FALSE(pool().allocate(Tier::device, 8, kFlood).has_value());
  serve(prompt(kQuiet, 2, 2));
  EXPECT_EQ(pool().available(Tier::device, kFlood), 6u) << "three are held, one more is sure";
  pool().release(held.blocks);
}

// -- maximums -------------------------------------------------------------------------------------

TEST_F(LanesTest, ADomainAtItsMaximumEvictsItsOwnThoughOthersAreFreeOrOlder) {
  make(20, {}, {.max = 4});
  const Prompt others = prompt(kFlood, 1, 4), first = prompt(kLimited, 2, 2),
               second = prompt(kLimited, 3, 2), third = prompt(kLimited, 4, 2);
  for (const Prompt* each : {&others, &first, &second, &third}) serve(*each);
  EXPECT_EQ(of(kLimited).all(), 4u);
  EXPECT_EQ(cached(others), 4u);
  EXPECT_EQ(cached(first), 0u);
  EXPECT_EQ(cached(second), 2u);
  EXPECT_EQ(cached(third), 2u);
}

TEST_F(LanesTest, BelowItsMaximumItTakesFreeBlocksFirst) {
  make(20, {}, {.max = 4});
  const Prompt first = prompt(kLimited, 1, 2);
  serve(first);
  serve(prompt(kLimited, 2, 2));
  EXPECT_EQ(cached(first), 2u);
}

TEST_F(LanesTest, ADomainThatHoldsItsMaximumGetsNoMoreAndLosesNothing) {
  make(20, {}, {.max = 4});
  const Prompt held = prompt(kLimited, 1, 3), idle = prompt(kLimited, 2, 1);
  serve(idle);
  const Request request = begin(held);
  EXPECT_TRUE(pool().lanes().is_at_maximum(kLimited, 2));
  EXPECT_FALSE(pool().lanes().is_at_maximum(kLimited, 1));
  const auto refused = pool().allocate(Tier::device, 2, kLimited);
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, Errc::pool_exhausted);
  EXPECT_EQ(cached(idle), 1u) << "nothing is evicted unless there is enough for all";
  EXPECT_EQ(pool().available(Tier::device, kLimited), 1u);
  const auto others = pool().allocate(Tier::device, 16, kFlood);
  EXPECT_TRUE(others.has_value()) << "nobody else is concerned";
  pool().release(*others);
  pool().release(request.blocks);
}

TEST_F(LanesTest, BlocksThatAreFilledCountAndComeBackWhenTheyAreFreed) {
  make(20, {}, {.max = 4});
  const auto filling = pool().allocate(Tier::device, 4, kLimited).value();
  EXPECT_EQ(of(kLimited), (LaneTotals{.cached = 0, .idle = 0, .filling = 4}));
  EXPECT_FALSE(pool().allocate(Tier::device, 1, kLimited).has_value());
  pool().release(filling);
  EXPECT_EQ(of(kLimited), LaneTotals{});
  EXPECT_TRUE(is_counted_right());
}

TEST_F(LanesTest, ABlockThatStillHasAnotherDomainsBytesCountsForTheDomainThatGotIt) {
  make(8, {}, {.max = 2});
  serve(prompt(kFlood, 1, 8));
  std::vector<Evicted> evicted;  // then the descriptor keeps the old domain until a copy is made
  const auto taken = pool().allocate(Tier::device, 2, kLimited, &evicted).value();
  EXPECT_EQ(pool().domain_of(taken[0]), kFlood);
  EXPECT_EQ(of(kLimited).filling, 2u);
  EXPECT_EQ(of(kFlood).filling, 0u);
  EXPECT_TRUE(pool().lanes().is_at_maximum(kLimited, 1));
  pool().release(taken);
  EXPECT_EQ(of(kLimited), LaneTotals{});
}

// -- where there are none -------------------------------------------------------------------------

TEST_F(LanesTest, WithoutLimitsNothingIsCounted) {
  make(small_geometry(9));
  const Prompt first = prompt(kQuiet, 1, 2);
  serve(first);
  flood(20);
  EXPECT_EQ(pool().lanes().count(), 1u);
  EXPECT_EQ(of(kQuiet), LaneTotals{});
  EXPECT_EQ(pool().capacity(Tier::device, kQuiet), 8u);
  EXPECT_EQ(pool().available(Tier::device, kQuiet), 8u);
  EXPECT_FALSE(pool().lanes().is_at_maximum(kQuiet, 100));
  EXPECT_FALSE(pool().lanes().is_within_minimum(kQuiet, 0));
  EXPECT_EQ(cached(first), 0u);
}

TEST_F(LanesTest, TheHostTierHasNoLimits) {
  PoolGeometry geometry = geometry_with(8, {.min = 2}, {.max = 2});
  geometry.host_blocks = 4;
  make(geometry);
  const auto all = pool().allocate(Tier::host, 4, kLimited);
  ASSERT_TRUE(all.has_value());
  EXPECT_EQ(of(kLimited), LaneTotals{});
  EXPECT_EQ(pool().available(Tier::host, kLimited), 0u);
  pool().release(*all);
}

TEST_F(LanesTest, EvictedContentMovesToTheHostTierAsEver) {
  PoolGeometry geometry = geometry_with(8, {.min = 2}, {.max = 2});
  geometry.host_blocks = 8;
  make(geometry);
  const Prompt old = prompt(kLimited, 1, 2);
  serve(old);
  std::vector<Evicted> evicted;
  const auto taken = pool().allocate(Tier::device, 2, kLimited, &evicted).value();
  keep_evicted(pool(), evicted);
  EXPECT_EQ(match_all(pool(), old, Tier::host).blocks.size(), 2u);
  pool().release(taken);
}

// -- the release order ----------------------------------------------------------------------------

TEST_F(LanesTest, ALaneThatWasLeftAloneForLongIsFoundAgain) {
  make(20, {.min = 6});
  const Prompt quiet = prompt(kQuiet, 1, 6);
  serve(quiet);
  const std::size_t slots = memory_->tier_layout(Tier::device).ring_slots;
  flood(3 * slots);  // other domains' hints have overwritten this one's
  EXPECT_EQ(cached(quiet), 6u);
  // It becomes evictable, and its oldest blocks are older than all others'.
  serve(prompt(kQuiet, 2, 4));
  EXPECT_EQ(cached(quiet), 2u);
  EXPECT_EQ(of(kQuiet).all(), 6u);
}

TEST_F(LanesTest, AnotherProcessFindsTheLaneAgainToo) {
  make(20, {.min = 6});
  sign_in(*memory_, ProcessSlot{1}, 1);
  BlockPool other(*memory_, ProcessSlot{1});
  other.release(other.allocate(Tier::device, 1, kFlood).value());
  serve(prompt(kQuiet, 1, 10));
  flood(3 * memory_->tier_layout(Tier::device).ring_slots);
  ASSERT_EQ(of(kQuiet).all(), 6u);
  const auto all = other.allocate(Tier::device, 20, kQuiet);
  EXPECT_TRUE(all.has_value()) << "its own blocks are the oldest";
  other.release(*all);
}

// -- counting -------------------------------------------------------------------------------------

class LanesWithPolicy : public LanesTest, public ::testing::WithParamInterface<EvictionPolicy> {};
INSTANTIATE_TEST_SUITE_P(Policies, LanesWithPolicy,
                         ::testing::Values(EvictionPolicy::lru, EvictionPolicy::second_chance),
                         [](const auto& policy) {
                           return policy.param == EvictionPolicy::lru ? "Lru" : "SecondChance";
                         });

TEST_P(LanesWithPolicy, CountsAreRightWhateverHappens) {
  PoolGeometry geometry = geometry_with(40, {.min = 5}, {.min = 3, .max = 9});
  geometry.eviction_policy = GetParam();
  make(geometry);
  sign_in(*memory_, ProcessSlot{1}, 1);
  BlockPool other(*memory_, ProcessSlot{1});
  std::mt19937 random(7);
  std::vector<std::pair<BlockPool*, std::vector<BlockId>>> held;
  for (int step = 0; step < 3000; ++step) {
    BlockPool& by = random() % 2 == 0 ? pool() : other;
    const DomainId domain{std::array<std::uint16_t, 4>{0, 1, 2, 50}[random() % 4]};
    const Prompt wanted = prompt(domain, 1 + TokenId(random() % 6), 1 + random() % 4);
    const PrefixHit hit = match_all(by, wanted);
    const std::size_t found = hit.blocks.size(), missing = wanted.full_blocks() - found;
    const auto fresh = by.allocate(Tier::device, missing, domain);
    if (!fresh) {
      by.cancel(hit);
    } else {
      if (random() % 3 != 0)
        by.publish(hit.end, *fresh, wanted.names(found, missing), wanted.of_blocks(found, missing));
      held.emplace_back(&by, joined_ids(hit.blocks, *fresh));
    }
    while (held.size() > 6 || (!held.empty() && random() % 2 == 0)) {
      const std::size_t i = random() % held.size();
      held[i].first->release(held[i].second);
      held.erase(held.begin() + std::ptrdiff_t(i));
    }
    ASSERT_TRUE(is_counted_right()) << "step " << step;
    ASSERT_LE(of(kLimited).all(), 9u);
  }
  for (auto& [by, blocks] : held) by->release(blocks);
}

TEST_F(LanesTest, ASweepSetsRightWhatADeadProcessDidNotCount) {
  make(20, {.min = 4}, {.max = 6});
  serve(prompt(kQuiet, 1, 4));
  sign_in(*memory_, ProcessSlot{1}, 1);
  {
    BlockPool dead(*memory_, ProcessSlot{1});
    (void)match_all(dead, prompt(kQuiet, 1, 4));
    (void)dead.allocate(Tier::device, 3, kLimited).value();
  }
  auto& counters = memory_->control().processes[1].lanes;
  bump(counters[2].idle, 1);  // it had changed a word, and was killed before it counted
  bump(counters[2].cached, -1);
  reap(*memory_, ProcessSlot{1});
  EXPECT_EQ(of(kLimited), LaneTotals{}) << "what it was filling is free again";
  EXPECT_EQ(of(kQuiet), (LaneTotals{.cached = 4, .idle = 4, .filling = 0}));
}

TEST_F(LanesTest, ASweepThatDropsContentCountsIt) {
  make(20, {.min = 4});
  serve(prompt(kQuiet, 1, 4));
  sign_in(*memory_, ProcessSlot{1}, 1);
  BlockPool dead(*memory_, ProcessSlot{1});
  (void)match_blocks(dead, prompt(kQuiet, 1, 4), 2);
  EXPECT_EQ(reap(*memory_, ProcessSlot{1}, Unheld::dropped).dropped, 4u);
  EXPECT_EQ(of(kQuiet), LaneTotals{});
}

TEST_F(LanesTest, ARepairCountsAnew) {
  make(20, {.min = 4});
  serve(prompt(kQuiet, 1, 4));
  bump(memory_->control().processes[0].lanes[2].cached, 1000);
  EXPECT_EQ(fsck(*memory_).miscounted, 1u);
  SlotOwners owners{};
  owners[0] = {SlotOwner::Use::used, 0};
  repair(*memory_, owners);
  EXPECT_EQ(fsck(*memory_).miscounted, 0u);
  EXPECT_EQ(of(kQuiet).all(), 4u);
}

// -- bad limits -----------------------------------------------------------------------------------

TEST(LanesGeometry, LimitsThatCannotBeKeptAreRefused) {
  EXPECT_FALSE(PoolMemory::create_private(geometry_with(10, {.min = 6}, {.min = 5})).has_value());
  EXPECT_TRUE(PoolMemory::create_private(geometry_with(10, {.min = 6}, {.min = 4})).has_value());
  EXPECT_FALSE(PoolMemory::create_private(geometry_with(10, {.min = 6, .max = 5})).has_value());
}

// -- the figure -----------------------------------------------------------------------------------

/// Hits of a domain that uses a set of prompts again and again, while another domain serves ten
/// times as many blocks, each prompt once.
double hits_beside_a_flood(BlockLimits quiet, bool is_flooded) {
  constexpr std::size_t kBlocks = 2'000, kPrompts = 40, kBlocksPerPrompt = 10;
  const PoolMemory memory = private_pool(geometry_with(kBlocks, quiet));
  sign_in(memory, ProcessSlot{0}, 0);
  BlockPool pool(memory, ProcessSlot{0});
  std::size_t hits = 0, queried = 0;
  TokenId next = 1'000'000;
  const auto serve = [&](DomainId domain, TokenId first) {
    const Prompt prompt(pool, counting(first, kBlocksPerPrompt * 4), domain);
    const PrefixHit hit = match_all(pool, prompt);
    const std::size_t found = hit.blocks.size(), missing = kBlocksPerPrompt - found;
    const auto fresh = pool.allocate(Tier::device, missing, domain).value();
    pool.publish(hit.end, fresh, prompt.names(found, missing), prompt.of_blocks(found, missing));
    pool.release(joined_ids(hit.blocks, fresh));
    return found;
  };
  std::mt19937 random(3);
  for (std::size_t i = 0; i < 12 * kPrompts; ++i) {
    const auto which = TokenId(i < kPrompts ? i : random() % kPrompts);
    const std::size_t found = serve(kQuiet, which * 1000);
    if (i >= kPrompts) hits += found, queried += kBlocksPerPrompt;
    for (int k = 0; is_flooded && k < 10; ++k) serve(kFlood, next += 1000);
  }
  return 100.0 * static_cast<double>(hits) / static_cast<double>(queried);
}

TEST(LanesFigures, AtItsMinimumADomainKeepsItsHitsWhileAnotherFloods) {
  const double alone = hits_beside_a_flood({.min = 400}, false);
  const double with = hits_beside_a_flood({.min = 400}, true);
  const double without = hits_beside_a_flood({.max = 2'000}, true);
  std::printf(
      "hit rate of a domain of 400 blocks in a pool of 2,000: alone %.1f %%, beside a flood "
      "of ten times its blocks %.1f %% with a minimum of 400 blocks, %.1f %% without\n",
      alone, with, without);
  EXPECT_NEAR(with, alone, 1);
  EXPECT_LT(without, alone - 10);
}

}  // namespace
}  // namespace kvhive::testing
