#include "pool/care/fsck.hpp"

#include <gmock/gmock.h>

#include "pool/block_pool.hpp"
#include "pool/care/repair.hpp"
#include "tests/support/private_pool.hpp"
#include "tests/support/request.hpp"

namespace kvhive::testing {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

/// A pool in use: free, filling, held and idle blocks in both tiers, a duplicate, an extra key.
class Fsck : public ::testing::Test {
 protected:
  Fsck() : memory(private_pool(small_geometry(16, 8, 5))), pool(memory, ProcessSlot{0}) {
    occupy(memory, ProcessSlot{0});
    (void)admit(pool, Prompt(pool, counting(0, 17), DomainId{7})).value();  // 1 2 3, 4 filling
    leave_idle(pool, Prompt(pool, counting(500, 10)));                      // 5 6
    const Prompt again(pool, counting(0, 5), DomainId{7});                  // 7
    publish_root(Tier::device, again, kNoExtraKey);
    publish_root(Tier::host, Prompt(pool, counting(900, 5)), ExtraKey{1, 99});  // 16
  }

  void publish_root(Tier tier, const Prompt& prompt, ExtraKey extra) {
    const auto block = pool.allocate(tier, 1, prompt.domain).value();
    const BlockHasher hasher = pool.hasher();
    const std::vector<Hash128> name{hasher.child(hasher.root(prompt.domain), prompt.tokens, extra)};
    pool.publish(BlockPool::root(prompt.domain), block, name, prompt.tokens, std::vector{extra});
  }

  BlockDescriptor& descriptor(std::uint32_t id) { return memory.descriptors()[id]; }
  BlockWord word(std::uint32_t id) { return {descriptor(id).word.load()}; }
  void set_word(std::uint32_t id, BlockState state, std::uint32_t holders) {
    descriptor(id).word.store(BlockWord::make(state, word(id).generation(), holders).bits);
  }
  std::vector<std::string> violations() const { return fsck(memory).violations; }

  PoolMemory memory;
  BlockPool pool;
};

TEST_F(Fsck, IsCleanOnASoundPool) {
  const FsckReport report = fsck(memory);
  EXPECT_THAT(report.violations, IsEmpty());
  EXPECT_EQ(report.blocks_checked, 24u);
  EXPECT_EQ(report.ready, 7u);
  EXPECT_EQ(report.orphans, 0u);
  EXPECT_EQ(report.unhinted, 0u);
  EXPECT_EQ(report.bytes_checked, 7u * 5 * sizeof(TokenId));
}

TEST_F(Fsck, FindsAHolderBitOfAnEmptySlot) {
  descriptor(2).word.fetch_or(holder_bit(ProcessSlot{9}));
  EXPECT_THAT(violations(), ElementsAre(HasSubstr("block 2 is held by slots nobody")));
}

TEST_F(Fsck, FindsTheReservedHolderBit) {
  descriptor(2).word.fetch_or(1u << 31);
  EXPECT_THAT(violations(), ElementsAre(HasSubstr("block 2 is held by slots nobody")));
}

TEST_F(Fsck, FindsEveryUnknownState) {
  for (const int state : {4, 5, 6, 7}) {
    set_word(10, BlockState(state), 0);
    EXPECT_THAT(violations(), ElementsAre(HasSubstr("block 10 is in unknown state")));
  }
}

TEST_F(Fsck, FindsAFreeBlockWithAHolder) {
  set_word(10, BlockState::free, 1);
  EXPECT_THAT(violations(), ElementsAre(HasSubstr("block 10 is free but held")));
}

TEST_F(Fsck, FindsAFillingBlockWithoutExactlyOneHolder) {
  set_word(4, BlockState::filling, 0);
  EXPECT_THAT(violations(), ElementsAre(HasSubstr("block 4 is being filled by 0")));
  occupy(memory, ProcessSlot{1});
  set_word(4, BlockState::filling, 0b11);
  EXPECT_THAT(violations(), ElementsAre(HasSubstr("block 4 is being filled by 2")));
}

TEST_F(Fsck, FindsANullBlockMarkedFree) {
  set_word(0, BlockState::free, 0);
  EXPECT_THAT(violations(), ElementsAre(HasSubstr("null block")));
}

TEST_F(Fsck, FindsEveryFlippedTokenBit) {
  for (const std::size_t token : {0, 1, 4}) {
    for (const int bit : {0, 15, 31}) {
      auto& cell = memory.token_row(BlockId{2})[token / 2];
      const std::uint64_t flip = 1ull << (token % 2 * 32 + std::size_t(bit));
      cell.fetch_xor(flip);
      EXPECT_THAT(violations(), ElementsAre(HasSubstr("block 2 does not hash")));
      cell.fetch_xor(flip);
    }
  }
  EXPECT_THAT(violations(), IsEmpty());
}

TEST_F(Fsck, FindsACorruptExtraKey) {
  memory.extra_key(BlockId{16})[1].fetch_xor(4);
  EXPECT_THAT(violations(), ElementsAre(HasSubstr("block 16 does not hash")));
  memory.extra_key(BlockId{16})[1].fetch_xor(4);
  descriptor(16).traits.store(0);
  EXPECT_THAT(violations(), ElementsAre(HasSubstr("block 16 does not hash")));
}

TEST_F(Fsck, FindsACorruptNameInTheBlockAndItsChild) {
  descriptor(2).hash_low.fetch_xor(1);
  EXPECT_THAT(violations(), ElementsAre(HasSubstr("block 2 "), HasSubstr("block 3 ")));
}

TEST_F(Fsck, FindsACorruptDomain) {
  descriptor(1).domain.store(8);
  EXPECT_THAT(violations(), ElementsAre(HasSubstr("block 1 starts from the root of no domain"),
                                        HasSubstr("block 1 does not hash"),
                                        HasSubstr("block 2 is in domain 7, its parent in 8")));
}

TEST_F(Fsck, FindsACorruptDepthInTheBlockAndItsChild) {
  descriptor(2).depth.store(5);
  EXPECT_THAT(violations(), ElementsAre(HasSubstr("block 2 is at depth 5, not at 1"),
                                        HasSubstr("block 3 is at depth 2, not at 6")));
}

TEST_F(Fsck, FindsAGroupThatDoesNotExist) {
  descriptor(2).group.store(1);
  EXPECT_THAT(violations(), ElementsAre(HasSubstr("block 2 is of group 1")));
}

TEST_F(Fsck, FindsTheMarkOfAHitInAPoolThatMarksNone) {
  descriptor(2).word.fetch_or(BlockWord::kHit);
  EXPECT_THAT(violations(), ElementsAre(HasSubstr("block 2 is marked as hit")));
}

TEST(FsckOfMarks, OnlyPublishedBlocksMayBeMarkedAsHit) {
  PoolGeometry geometry = small_geometry(8);
  geometry.eviction_policy = EvictionPolicy::second_chance;
  const PoolMemory memory = private_pool(geometry);
  occupy(memory, ProcessSlot{0});
  BlockPool pool(memory, ProcessSlot{0});
  const Prompt prompt(pool, counting(0, 4));
  leave_idle(pool, prompt);
  const PrefixHit hit = match_all(pool, prompt);
  ASSERT_TRUE(memory.block(hit.blocks[0]).word().is_hit());
  pool.release(hit.blocks);
  EXPECT_THAT(fsck(memory, Moment::quiescent).violations, IsEmpty());
  memory.block(BlockId{5}).mark_hit();
  EXPECT_THAT(fsck(memory, Moment::quiescent).violations,
              ElementsAre(HasSubstr("block 5 is marked as hit")));
  repair(memory, {});
  EXPECT_THAT(fsck(memory, Moment::quiescent).violations, IsEmpty());
  EXPECT_TRUE(memory.block(hit.blocks[0]).word().is_hit());
}

TEST_F(Fsck, FindsASerialThatDoesNotGoWithTheUid) {
  const std::uint64_t serial = descriptor(3).serial.load();
  for (const std::uint64_t wrong : {serial - 1, serial | std::uint64_t{1} << 40}) {
    descriptor(3).serial.store(wrong);
    EXPECT_THAT(violations(), ElementsAre(HasSubstr("block 3 has serial")));
  }
}

TEST_F(Fsck, ComparesTheSlotTableWithTheKeepersOwners) {
  SlotOwners owners{};
  owners[0] = {SlotOwner::Use::used, 1};
  owners[4] = {SlotOwner::Use::used, 44};  // has not signed in yet
  owners[5] = {SlotOwner::Use::unswept, 0};
  occupy(memory, ProcessSlot{5}, 55);
  EXPECT_THAT(fsck(memory, Moment::live, &owners).violations, IsEmpty());
  occupy(memory, ProcessSlot{0}, 2);
  occupy(memory, ProcessSlot{6}, 66);
  EXPECT_THAT(
      fsck(memory, Moment::live, &owners).violations,
      ElementsAre(HasSubstr("slot 0 is signed by pid 2, but is of pid 1"),
                  HasSubstr("slot 6 is signed by pid 66, but the keeper knows no process")));
}

TEST_F(Fsck, StatesAddUp) {
  const FsckReport report = fsck(memory);
  EXPECT_EQ(report.free + report.filling + report.held + report.idle + report.retired, 23u);
  EXPECT_EQ(report.held + report.idle, report.ready);
}

TEST_F(Fsck, UnlistedFreeBlocksAreViolationsOnlyInAQuiescentPool) {
  memory.bitmap(Tier::device)[0].fetch_and(~(1ull << 12));
  const FsckReport live = fsck(memory);
  EXPECT_THAT(live.violations, IsEmpty());
  EXPECT_EQ(live.unlisted, 1u);
  EXPECT_THAT(fsck(memory, Moment::quiescent).violations,
              ElementsAre(HasSubstr("block 12 is free, but no process would find it")));
}

TEST_F(Fsck, FindsBitsBeyondTheEndsOfTables) {
  memory.bitmap(Tier::host)[0].fetch_or(1ull << 8);
  memory.summary(Tier::device)[0].fetch_or(2);
  EXPECT_THAT(violations(), ElementsAre(HasSubstr("device tier's free bitmap's summary"),
                                        HasSubstr("host tier's free bitmap has bits beyond")));
}

TEST_F(Fsck, FindsAnOrderThatNamesBlocksOfTheOtherTier) {
  memory.ring(Tier::device)[3].store(16);
  memory.ring(Tier::host)[3].store(15);
  EXPECT_THAT(violations(), ElementsAre(HasSubstr("device tier's release order names block 16"),
                                        HasSubstr("host tier's release order names block 15")));
}

TEST_F(Fsck, FindsTwoHintsForOneBlock) {
  const Hash128 name{descriptor(2).hash_low.load(), descriptor(2).hash_high.load()};
  auto& ways = memory.index()[name.low & (memory.layout().index_buckets - 1)].way;
  ways[7].store((name.high & 0xffffffff00000000ull) | 2);
  EXPECT_THAT(violations(), ElementsAre(HasSubstr("block 2 has two hints")));
}

TEST_F(Fsck, FindsAUidThatWasNeverGivenOut) {
  for (const std::uint64_t uid : {0ull, 1ull << 40, ~0ull}) {
    descriptor(3).uid.store(uid);
    EXPECT_THAT(violations(), Contains(HasSubstr("block 3 has uid")));
  }
}

TEST_F(Fsck, FindsAUidOfOtherContent) {
  descriptor(3).uid.store(descriptor(5).uid.load());
  EXPECT_THAT(violations(), Contains(HasSubstr("block 3 shares uid")));
  EXPECT_THAT(violations(), Contains(HasSubstr("block 5 shares uid")))
      << "fsck cannot tell which of the two is corrupt";
}

TEST_F(Fsck, FindsAParentThatIsAnotherBlock) {
  descriptor(3).parent_uid.store(descriptor(5).uid.load());
  EXPECT_THAT(violations(), Contains(HasSubstr("block 3 does not hash")));
}

TEST_F(Fsck, FindsAStampFromTheFuture) {
  descriptor(6).stamp.store(1ull << 50);
  EXPECT_THAT(violations(), ElementsAre(HasSubstr("block 6 has a release stamp")));
}

TEST_F(Fsck, FindsAHintBeyondThePool) {
  memory.index()[0].way[3].store(0xabcd'0000'0000'0000 | 24);
  EXPECT_THAT(violations(), ElementsAre(HasSubstr("points at block 24, beyond the pool")));
}

TEST_F(Fsck, FindsAHeadAfterTheTail) {
  memory.control().tiers[1].lanes[0].head.store(1000);
  EXPECT_THAT(violations(), ElementsAre(HasSubstr("host tier's release order")));
}

TEST_F(Fsck, CountsOrphansWithoutCallingThemViolations) {
  set_word(2, BlockState::retired, 0);
  const FsckReport report = fsck(memory);
  EXPECT_THAT(report.violations, IsEmpty());
  EXPECT_EQ(report.orphans, 1u);
}

TEST_F(Fsck, ReportsABoundedNumberOfViolations) {
  PoolMemory big = private_pool(small_geometry(1000));
  for (std::uint32_t id = 1; id < 1000; ++id)
    big.descriptors()[id].word.store(BlockWord::make(BlockState::free, 0, 1).bits);
  EXPECT_EQ(fsck(big).violations.size(), 100u);
  EXPECT_EQ(fsck(big).violations_in_all, 2 * 999u)
      << "each block: free but held, and held by an empty slot";
}

}  // namespace
}  // namespace kvhive::testing
