#include "pool/eviction/idle_order.hpp"

#include <gmock/gmock.h>

#include "tests/support/private_pool.hpp"
#include "tests/support/request.hpp"

namespace kvhive::testing {
namespace {

using ::testing::IsEmpty;
using Ids = std::vector<std::uint32_t>;

/// A pool whose blocks are all published and held by slot 0, and its release order.
struct Order {
  explicit Order(std::uint32_t blocks) : Order(small_geometry(blocks)) {}
  explicit Order(const PoolGeometry& geometry)
      : memory(private_pool(geometry)), idle(memory, Tier::device) {
    for (std::uint32_t id = 1; id < geometry.device_blocks; ++id) hold(id);
  }

  void set(std::uint32_t id, BlockState state, std::uint32_t holders) {
    memory.descriptors()[id].word.store(BlockWord::make(state, 1, holders).bits);
  }
  void hold(std::uint32_t id) { set(id, BlockState::ready, 1); }
  void drop(std::uint32_t id) { set(id, BlockState::ready, 0); }
  void take(std::uint32_t id) { set(id, BlockState::filling, 1); }
  void hit(std::uint32_t id) { memory.block(BlockId{id}).mark_hit(); }
  bool is_hit(std::uint32_t id) const { return memory.block(BlockId{id}).word().is_hit(); }

  void release(const Ids& ids) {
    std::vector<BlockId> blocks;
    for (const std::uint32_t id : ids) blocks.push_back(BlockId{id});
    idle.stamp(blocks);
    for (const std::uint32_t id : ids) drop(id);
    idle.settle(blocks);
  }

  static Ids oldest(IdleOrder& of, std::size_t count,
                    IdleOrder::Chances chances = IdleOrder::Chances::given) {
    std::vector<Candidate> found;
    of.oldest(count, found, 0, chances);
    Ids ids;
    for (const auto& candidate : found) ids.push_back(candidate.block.value);
    return ids;
  }
  Ids oldest(std::size_t count) { return oldest(idle, count); }
  TierControl& control() { return memory.control().tiers[0]; }

  PoolMemory memory;
  IdleOrder idle;
};

TEST(IdleOrder, StartsEmpty) {
  Order o(8);
  EXPECT_THAT(o.oldest(5), IsEmpty());
  EXPECT_THAT(o.idle.order(), IsEmpty());
}

TEST(IdleOrder, OrdersByReleaseAndWithinAReleaseAsGiven) {
  Order o(8);
  o.release({5, 2});
  o.release({7});
  o.release({1, 3});
  EXPECT_EQ(numbers(o.idle.order()), (Ids{5, 2, 7, 1, 3}));
  EXPECT_EQ(o.oldest(4), (Ids{5, 2, 7, 1}));
}

TEST(IdleOrder, ASecondCallGoesOnAfterTheFirst) {
  Order o(8);
  o.release({1, 2, 3, 4});
  EXPECT_EQ(o.oldest(2), (Ids{1, 2}));
  EXPECT_EQ(o.oldest(9), (Ids{3, 4}));
}

TEST(IdleOrder, AfterARollbackTheNextCallStartsAgain) {
  Order o(8);
  o.release({1, 2, 3});
  EXPECT_EQ(o.oldest(2), (Ids{1, 2}));
  o.idle.rollback();
  EXPECT_EQ(o.oldest(3), (Ids{1, 2, 3}));
}

TEST(IdleOrder, CommittedCandidatesAreUsedUpForAllProcesses) {
  Order o(8);
  IdleOrder another(o.memory, Tier::device);
  o.release({1, 2, 3});
  EXPECT_EQ(o.oldest(2), (Ids{1, 2}));
  o.take(1);
  o.take(2);
  o.idle.commit();
  EXPECT_EQ(o.control().lanes[0].head.load(), 3u);
  EXPECT_EQ(o.oldest(another, 3), Ids{3});
}

TEST(IdleOrder, HeldBlockIsPassedOver) {
  Order o(8);
  o.release({1, 2, 3});
  o.hold(2);
  EXPECT_EQ(o.oldest(3), (Ids{1, 3}));
}

TEST(IdleOrder, OnlyTheLatestReleaseCounts) {
  Order o(8);
  o.release({1, 2});
  o.hold(1);
  o.release({1});
  EXPECT_EQ(o.oldest(3), (Ids{2, 1}));
}

// The interleavings of a release and an eviction in another process.

TEST(IdleOrder, ReleaseOvertakenByAnEvictionIsStampedAnew) {
  Order o(8);
  const std::vector<BlockId> one{BlockId{1}};
  o.idle.stamp(one);
  IdleOrder evictor(o.memory, Tier::device);
  EXPECT_THAT(o.oldest(evictor, 1), IsEmpty());  // still held, so the evictor passes its hint
  evictor.commit();
  o.drop(1);
  o.idle.settle(one);
  EXPECT_EQ(o.oldest(evictor, 1), Ids{1});
}

TEST(IdleOrder, AReleaseThatEndsBeforeTheEvictorsCommitIsFoundAgain) {
  Order o(8);
  const std::vector<BlockId> one{BlockId{1}};
  o.idle.stamp(one);
  IdleOrder evictor(o.memory, Tier::device);
  EXPECT_THAT(o.oldest(evictor, 1), IsEmpty());
  o.drop(1);
  o.idle.settle(one);  // the head has not moved yet: nothing to do
  evictor.commit();
  EXPECT_EQ(o.oldest(evictor, 1), Ids{1});
}

TEST(IdleOrder, AHintWrittenAfterTheEvictorPassedIsFoundAgain) {
  Order o(8);
  o.idle.stamp(std::vector{BlockId{1}});
  auto& hint = o.memory.ring(Tier::device)[1];
  hint.store(0);  // stamp drawn, hint not written yet
  IdleOrder evictor(o.memory, Tier::device);
  EXPECT_THAT(o.oldest(evictor, 1), IsEmpty());
  hint.store(1);
  o.drop(1);
  o.idle.settle(std::vector{BlockId{1}});
  evictor.commit();
  EXPECT_EQ(o.oldest(evictor, 1), Ids{1});
}

TEST(IdleOrder, ACandidatePinnedBeforeTheCommitIsFoundAgain) {
  Order o(8);
  o.release({1});
  IdleOrder evictor(o.memory, Tier::device);
  EXPECT_EQ(o.oldest(evictor, 1), Ids{1});
  o.hold(1);  // another process pins it before the evictor takes it
  o.drop(1);  // and cancels its hit
  o.idle.restore(std::vector{BlockId{1}});
  evictor.commit();
  EXPECT_EQ(o.oldest(evictor, 1), Ids{1});
}

TEST(IdleOrder, RestoredBlockKeepsItsPlaceAlsoBehindTheHead) {
  Order o(8);
  o.release({1, 2, 3});
  o.hold(1);
  EXPECT_EQ(o.oldest(1), Ids{2});
  o.take(2);
  o.idle.commit();
  o.drop(1);
  o.idle.restore(std::vector{BlockId{1}});
  EXPECT_EQ(o.oldest(2), (Ids{1, 3}));
}

TEST(IdleOrder, AScanFindsBlocksWithoutHints) {
  Order o(8);
  o.release({3, 1, 2});
  for (std::size_t i = 0; i < o.memory.tier_layout(Tier::device).ring_slots; ++i)
    o.memory.ring(Tier::device)[i].store(0);
  EXPECT_THAT(o.oldest(3), IsEmpty());
  o.idle.rollback();
  o.idle.scan();
  EXPECT_EQ(o.oldest(3), (Ids{3, 1, 2}));
}

TEST(IdleOrder, BlocksReleasedAfterAScanComeAfterTheScannedOnes) {
  Order o(8);
  o.release({3, 1});
  o.idle.scan();
  o.release({2});
  EXPECT_EQ(o.oldest(2), (Ids{3, 1}));
  o.take(3);
  o.take(1);
  o.idle.commit();
  o.release({4});
  EXPECT_EQ(o.oldest(3), (Ids{2, 4}));
}

TEST(IdleOrder, InvalidatedHintsMakeEveryProcessScan) {
  Order o(8);
  IdleOrder another(o.memory, Tier::device);
  o.release({1, 2});
  o.control().lanes[0].head.store(
      o.control().tail.load());  // an evictor was killed before taking them
  EXPECT_THAT(o.oldest(another, 2), IsEmpty());
  another.rollback();
  IdleOrder::invalidate(o.control());
  EXPECT_EQ(o.oldest(another, 2), (Ids{1, 2}));
  another.rollback();
  EXPECT_EQ(o.oldest(2), (Ids{1, 2}));
}

TEST(IdleOrder, AnOverwrittenRingIsDetected) {
  Order o(8);
  o.release({1, 2, 3});
  const std::size_t slots = o.memory.tier_layout(Tier::device).ring_slots;
  for (std::size_t i = 0; i < slots; ++i) {
    o.hold(3);
    o.release({3});
  }
  EXPECT_EQ(o.oldest(3), (Ids{1, 2, 3}));
  EXPECT_EQ(o.control().lanes[0].epoch.load(), 1u);
}

TEST(IdleOrder, AFullRingIsNotTakenForAnOverwrittenOne) {
  Order o(8);
  o.release({1, 2, 3});
  const std::size_t slots = o.memory.tier_layout(Tier::device).ring_slots;
  for (std::size_t i = 3; i < slots; ++i) {
    o.hold(3);
    o.release({3});
  }
  EXPECT_EQ(o.oldest(3), (Ids{1, 2, 3}));
  EXPECT_EQ(o.control().lanes[0].epoch.load(), 0u);
}

TEST(IdleOrder, HintsBeyondThePoolAreIgnored) {
  Order o(8);
  o.release({1, 2});
  o.memory.ring(Tier::device)[1].store(0xfffffff0);
  EXPECT_EQ(o.oldest(2), Ids{2});
}

/// Two lanes: lane 1 has the blocks of domain 0, lane 0 all others.
struct TwoLanes : Order {
  explicit TwoLanes(std::uint32_t blocks, const Ids& others) : Order(limited(blocks)) {
    for (const std::uint32_t id : others) memory.descriptors()[id].domain.store(9);
  }
  static PoolGeometry limited(std::uint32_t blocks) {
    PoolGeometry geometry = small_geometry(blocks);
    geometry.limits[0].min = 1;
    return geometry;
  }
  Ids oldest_of(std::size_t lane, std::size_t count) {
    std::vector<Candidate> found;
    idle.oldest(count, found, lane);
    Ids ids;
    for (const auto& candidate : found) ids.push_back(candidate.block.value);
    return ids;
  }
};

TEST(IdleOrderLanes, EachHasItsOwnOldest) {
  TwoLanes o(8, {2, 4, 6});
  o.release({1, 2, 3});
  o.release({4, 5});
  EXPECT_EQ(o.oldest_of(0, 5), (Ids{2, 4}));
  EXPECT_EQ(o.oldest_of(1, 5), (Ids{1, 3, 5}));
  EXPECT_EQ(numbers(o.idle.order()), (Ids{1, 2, 3, 4, 5}));
}

TEST(IdleOrderLanes, StampsSayWhichLaneHasTheOldest) {
  TwoLanes o(8, {2, 4, 6});
  o.release({2, 1, 3});
  EXPECT_LT(o.idle.next_stamp(0), o.idle.next_stamp(1));
  EXPECT_EQ(o.oldest_of(0, 1), (Ids{2}));
  EXPECT_EQ(o.idle.next_stamp(0), IdleOrder::kNoStamp);
  EXPECT_EQ(o.oldest_of(1, 1), (Ids{1}));
  EXPECT_EQ(o.oldest_of(1, 1), (Ids{3})) << "what was looked at only is still there";
}

TEST(IdleOrderLanes, AHeadLeavesOtherLanesAlone) {
  TwoLanes o(8, {2, 4, 6});
  o.release({1, 2, 3, 4, 5, 6});
  EXPECT_EQ(o.oldest_of(0, 3), (Ids{2, 4, 6}));
  for (const std::uint32_t id : {2, 4, 6}) o.take(id);
  o.idle.commit();
  EXPECT_EQ(o.control().lanes[0].head.load(), 7u);
  EXPECT_EQ(o.control().lanes[1].head.load(), 1u);
  EXPECT_EQ(o.control().tail.load(), 7u) << "nobody was stamped anew";
  EXPECT_EQ(o.oldest_of(1, 3), (Ids{1, 3, 5}));
}

TEST(IdleOrderLanes, WhatIsOnlyLookedAtIsNotUsedUp) {
  TwoLanes o(8, {2, 4, 6});
  o.release({1, 2, 3});
  (void)o.idle.next_stamp(1);
  EXPECT_EQ(o.oldest_of(0, 1), (Ids{2}));
  o.take(2);
  o.idle.commit();
  IdleOrder another(o.memory, Tier::device);
  std::vector<Candidate> found;
  another.oldest(2, found, 1);
  EXPECT_EQ(found.size(), 2u);
}

TEST(IdleOrderLanes, ALaneWhoseHintsOthersHaveOverwrittenIsScanned) {
  TwoLanes o(8, {2});
  o.release({3, 1});
  const std::size_t slots = o.memory.tier_layout(Tier::device).ring_slots;
  for (std::size_t i = 0; i < slots; ++i) {
    o.hold(2);
    o.release({2});
  }
  EXPECT_EQ(o.oldest_of(1, 3), (Ids{3, 1}));
  EXPECT_EQ(o.control().lanes[1].epoch.load(), 1u);
  EXPECT_EQ(o.control().epoch.load(), 0u) << "the other lane need not be scanned";
}

// -- the second chance

TEST(SecondChance, ABlockThatWasHitGoesToTheEndOnce) {
  Order o(8);
  o.release({1, 2, 3, 4});
  o.hit(1);
  o.hit(3);
  EXPECT_EQ(o.oldest(2), (Ids{2, 4}));
  EXPECT_EQ(o.idle.take_spared(), 2u);
  EXPECT_FALSE(o.is_hit(1)) << "that was its chance";
  o.take(2);
  o.take(4);
  o.idle.commit();
  EXPECT_EQ(numbers(o.idle.order()), (Ids{1, 3}));
  EXPECT_EQ(o.oldest(2), (Ids{1, 3}));
  EXPECT_EQ(o.idle.take_spared(), 0u);
}

TEST(SecondChance, WhereAllWereHitTheOldestGoAllTheSame) {
  Order o(8);
  o.release({1, 2, 3});
  for (const std::uint32_t id : {1, 2, 3}) o.hit(id);
  EXPECT_EQ(o.oldest(2), (Ids{1, 2}));
  EXPECT_EQ(o.idle.take_spared(), 3u);
  EXPECT_EQ(o.oldest(2), (Ids{3})) << "the cursor goes on behind what it has returned";
}

TEST(SecondChance, IsWithheldIfItIsAsked) {
  Order o(8);
  o.release({1, 2});
  o.hit(1);
  EXPECT_EQ(Order::oldest(o.idle, 2, IdleOrder::Chances::withheld), (Ids{1, 2}));
  EXPECT_TRUE(o.is_hit(1));
}

TEST(SecondChance, HoldsForBlocksThatAScanHasFound) {
  Order o(8);
  o.release({1, 2, 3});
  o.hit(1);
  o.idle.scan();
  EXPECT_EQ(o.oldest(3), (Ids{2, 3, 1}));
}

TEST(SecondChance, AnotherProcessThatHasPassedByFindsTheBlockAtTheEnd) {
  Order o(8);
  IdleOrder other(o.memory, Tier::device);
  o.release({1, 2, 3});
  o.hit(1);
  EXPECT_EQ(o.oldest(1), (Ids{2}));
  o.take(2);
  o.idle.commit();
  EXPECT_EQ(Order::oldest(other, 2), (Ids{3, 1}));
}

TEST(SecondChance, TheNextStampIsThatOfTheBlockThatComesNext) {
  Order o(8);
  o.release({1, 2});
  o.hit(1);
  const std::uint64_t second = o.memory.block(BlockId{2}).stamp();
  EXPECT_EQ(o.idle.next_stamp(0), second);
  EXPECT_EQ(o.oldest(1), (Ids{2}));
}

TEST(SecondChance, TheNextStampIsFoundWhereAllWereHit) {
  Order o(8);
  o.release({1, 2});
  o.hit(1);
  o.hit(2);
  EXPECT_NE(o.idle.next_stamp(0), IdleOrder::kNoStamp);
  EXPECT_EQ(o.oldest(2), (Ids{1, 2}));
  EXPECT_EQ(o.idle.next_stamp(0), IdleOrder::kNoStamp);
}

}  // namespace
}  // namespace kvhive::testing
