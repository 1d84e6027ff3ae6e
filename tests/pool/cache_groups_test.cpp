// What the pool itself does with cache groups: chained or not, who is found, what moves.

#include <gmock/gmock.h>

#include "hashing/sequence_names.hpp"
#include "pool/block_pool.hpp"
#include "pool/care/fsck.hpp"
#include "pool/care/repair.hpp"
#include "tests/support/keep_evicted.hpp"
#include "tests/support/private_pool.hpp"
#include "tests/support/request.hpp"

namespace kvhive::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr GroupId kFullGroup{0}, kWindow{1};

PoolGeometry with_groups() {
  PoolGeometry geometry = small_geometry(16, 8);
  geometry.models[0].groups.count = 2;
  geometry.models[0].groups.group[1] = {CacheKind::sliding_window, 8};
  return geometry;
}

class CacheGroupsOfAPool : public ::testing::Test {
 protected:
  CacheGroupsOfAPool() {
    for (const std::uint32_t slot : {0u, 1u}) occupy(memory_, ProcessSlot{slot}, slot + 1);
    names_.extend(pool_.hasher(), tokens_);
  }
  void TearDown() override { EXPECT_THAT(fsck(memory_).violations, IsEmpty()); }

  std::span<const TokenId> tokens(std::size_t first, std::size_t count) const {
    return std::span(tokens_).subspan(first * 4, count * 4);
  }
  std::span<const ExtraKey> extras(GroupId group, std::size_t first, std::size_t count) const {
    const auto all = names_.extras(group);
    return all.empty() ? all : all.subspan(first, count);
  }
  /// Publishes all four blocks in a group, and leaves them idle.
  std::vector<BlockId> publish(GroupId group) {
    const auto blocks = pool_.allocate(Tier::device, 4).value();
    fill(blocks, group);
    pool_.publish(BlockPool::root({}, group), blocks, names_.names(group), tokens_,
                  names_.extras(group));
    pool_.release(blocks);
    return blocks;
  }
  void fill(const std::vector<BlockId>& blocks, GroupId group) {
    for (std::size_t i = 0; i < blocks.size(); ++i)
      fill_payload(memory_, blocks[i], names_.names(group)[i]);
  }
  PrefixHit find(BlockPool& pool, GroupId group, std::uint32_t first, std::size_t count,
                 Tier tier = Tier::device) {
    return pool.match(tier, BlockPool::root({}, group, first),
                      names_.names(group).subspan(first, count), tokens(first, count),
                      extras(group, first, count));
  }

  static SlotOwners both() {
    SlotOwners owners{};
    owners[0].use = owners[1].use = SlotOwner::Use::used;
    return owners;
  }

  PoolMemory memory_ = private_pool(with_groups());
  BlockPool pool_{memory_, ProcessSlot{0}}, peer_{memory_, ProcessSlot{1}};
  std::vector<TokenId> tokens_ = counting(10, 16);
  SequenceNames names_{with_groups().models[0].groups, DomainId{}, 4};
};

TEST_F(CacheGroupsOfAPool, ABlockOfAWindowIsFoundWithoutThoseBeforeIt) {
  const auto blocks = publish(kWindow);
  const PrefixHit hit = find(peer_, kWindow, 2, 2);
  EXPECT_EQ(hit.blocks, (std::vector{blocks[2], blocks[3]}));
  EXPECT_EQ(hit.end.depth, 4u);
  EXPECT_EQ(hit.end.uid, BlockPool::root({}, kWindow).uid);
  peer_.release(hit.blocks);
}

TEST_F(CacheGroupsOfAPool, ABlockOfFullAttentionIsFoundBehindItsParentOnly) {
  publish(kFullGroup);
  EXPECT_THAT(find(peer_, kFullGroup, 2, 2).blocks, IsEmpty());
  const PrefixHit whole = find(peer_, kFullGroup, 0, 4);
  ASSERT_THAT(whole.blocks, SizeIs(4));
  const Prefix middle{DomainId{}, peer_.uid_of(whole.blocks[1]), 2, kFullGroup};
  const PrefixHit rest =
      peer_.match(Tier::device, middle, names_.names(kFullGroup).subspan(2, 2), tokens(2, 2));
  EXPECT_THAT(rest.blocks, SizeIs(2));
  peer_.release(rest.blocks);
  peer_.release(whole.blocks);
}

TEST_F(CacheGroupsOfAPool, GroupsFindOnlyTheirOwnBlocks) {
  publish(kFullGroup);
  EXPECT_THAT(find(peer_, kWindow, 0, 1).blocks, IsEmpty());
}

TEST_F(CacheGroupsOfAPool, ADigestThatDiffersIsNoHitWhateverTheName) {
  publish(kWindow);
  const std::vector<ExtraKey> wrong{ExtraKey{1, 2}};
  const PrefixHit hit = peer_.match(Tier::device, BlockPool::root({}, kWindow, 2),
                                    names_.names(kWindow).subspan(2, 1), tokens(2, 1), wrong);
  EXPECT_THAT(hit.blocks, IsEmpty());
}

TEST_F(CacheGroupsOfAPool, EqualBlocksOfAWindowHaveOneUid) {
  const auto first = publish(kWindow), second = publish(kWindow);
  for (std::size_t i = 0; i < 4; ++i)
    EXPECT_EQ(memory_.block(first[i]).uid(), memory_.block(second[i]).uid());
}

TEST_F(CacheGroupsOfAPool, BlocksOfAWindowMoveToTheHostTierAndAreFoundThere) {
  publish(kWindow);
  std::vector<Evicted> evicted;
  const auto taken = pool_.allocate(Tier::device, 15, {}, &evicted).value();
  ASSERT_THAT(evicted, SizeIs(4));
  keep_evicted(pool_, evicted);
  pool_.release(taken);
  const PrefixHit hit = find(peer_, kWindow, 3, 1, Tier::host);
  ASSERT_THAT(hit.blocks, SizeIs(1));
  EXPECT_EQ(memory_.block(hit.blocks[0]).group(), kWindow);
  EXPECT_EQ(memory_.block(hit.blocks[0]).depth(), 3u);
  peer_.release(hit.blocks);
}

TEST_F(CacheGroupsOfAPool, TheDescriptorNamesTheGroup) {
  for (const BlockId block : publish(kWindow)) EXPECT_EQ(memory_.block(block).group(), kWindow);
}

// -- damage ---------------------------------------------------------------------------------------

TEST_F(CacheGroupsOfAPool, FsckFindsABlockInAnotherGroupThanItsRoot) {
  const auto blocks = publish(kWindow);
  memory_.descriptors()[blocks[1].value].group.store(0);
  EXPECT_THAT(fsck(memory_).violations,
              ::testing::Contains(HasSubstr("starts from the root of no")));
  EXPECT_GT(repair(memory_, both()).retired, 0u);
}

TEST_F(CacheGroupsOfAPool, FsckFindsAParentWhereThereIsNone) {
  const auto blocks = publish(kWindow);
  memory_.descriptors()[blocks[1].value].parent_uid.store(memory_.block(blocks[0]).uid());
  EXPECT_THAT(fsck(memory_).violations, ::testing::Contains(HasSubstr("has a parent, which")));
  EXPECT_GT(repair(memory_, both()).retired, 0u);
}

TEST_F(CacheGroupsOfAPool, FsckFindsADigestThatDoesNotBelongToTheName) {
  const auto blocks = publish(kWindow);
  memory_.extra_key(blocks[2])[0].fetch_xor(1);
  EXPECT_THAT(fsck(memory_).violations,
              ::testing::Contains(HasSubstr("does not hash to its name")));
  EXPECT_GT(repair(memory_, both()).retired, 0u);
}

TEST_F(CacheGroupsOfAPool, ABlockOfAWindowIsNoOrphan) {
  publish(kWindow);
  const auto taken = pool_.allocate(Tier::device, 12).value();  // evicts the last block only
  pool_.release(taken);
  EXPECT_EQ(fsck(memory_).orphans, 0u);
}

// -- the geometry ---------------------------------------------------------------------------------

TEST(CacheGroupsOfAGeometry, AreChecked) {
  const auto refused = [](auto change) {
    PoolGeometry geometry = with_groups();
    change(geometry.models[0].groups);
    const auto made = create_pool_objects(geometry);
    return made ? std::string() : made.error().text;
  };
  EXPECT_EQ(refused([](CacheGroups&) {}), "");
  EXPECT_THAT(refused([](CacheGroups& g) { g.count = 0; }),
              HasSubstr("1 to 16 cache groups, got 0"));
  EXPECT_THAT(refused([](CacheGroups& g) { g.count = 17; }), HasSubstr("got 17"));
  EXPECT_THAT(refused([](CacheGroups& g) { g.group[1].kind = CacheKind(9); }),
              HasSubstr("kind is 9"));
  EXPECT_THAT(refused([](CacheGroups& g) { g.group[1].span = 0; }),
              HasSubstr("sliding_window has span 0"));
  EXPECT_THAT(refused([](CacheGroups& g) { g.group[0].span = 5; }), HasSubstr("full has span 5"));
}

TEST(CacheGroupsOfAGeometry, AreComparedAtAttach) {
  PoolGeometry one = small_geometry(16, 8);
  EXPECT_NE(one, with_groups());
  EXPECT_NE(layout_hash(one), layout_hash(with_groups()));
}

}  // namespace
}  // namespace kvhive::testing
