// Content that the device tier evicts is kept in the host tier unchanged.

#include <gmock/gmock.h>

#include "pool/care/fsck.hpp"
#include "pool/care/reaper.hpp"
#include "pool/eviction/eviction_journal.hpp"
#include "tests/support/keep_evicted.hpp"
#include "tests/support/private_pool.hpp"
#include "tests/support/request.hpp"

namespace kvhive::testing {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr DomainId kTheirs{1}, kOurs{2};

/// All fields of a descriptor, its tokens and its extra key: what a demotion must not change.
std::vector<std::uint64_t> identity(const PoolMemory& memory, BlockId block) {
  const BlockDescriptor& d = memory.descriptors()[block.value];
  std::vector<std::uint64_t> all{d.hash_low, d.hash_high, d.uid,   d.parent_uid, d.serial,
                                 d.depth,    d.domain,    d.group, d.traits & 1u};
  for (std::size_t w = 0; w < memory.layout().row_words; ++w)
    all.push_back(memory.token_row(block)[w]);
  if ((d.traits & 1u) != 0)
    for (const int half : {0, 1}) all.push_back(memory.extra_key(block)[half]);
  return all;
}

/// Device blocks 1 to 6 and host blocks 7 to 10, of three tokens each, so that the last word of a
/// token row is half empty.
class DemotionTest : public ::testing::Test {
 protected:
  explicit DemotionTest(std::uint32_t host_blocks = 4)
      : memory_(private_pool(small_geometry(7, host_blocks, 3))) {
    for (const ProcessSlot slot : {ProcessSlot{0}, ProcessSlot{1}}) occupy(memory_, slot);
  }
  ~DemotionTest() override { EXPECT_THAT(fsck(memory_).violations, IsEmpty()); }

  Prompt prompt(TokenId first, std::size_t blocks, DomainId domain = {}) {
    return Prompt(pool_, counting(first, blocks * 3 + 1), domain);
  }
  /// Admits the prompt, fills its blocks with the bytes of their names, and releases them.
  std::vector<BlockId> leave(const Prompt& prompt, BlockPool& pool) {
    const Request request = admit(pool, prompt).value();
    for (std::size_t i = 0; i < prompt.full_blocks(); ++i)
      fill_payload(memory_, request.blocks[i], prompt.chain[i]);
    pool.release(request.blocks);
    return request.blocks;
  }
  std::vector<BlockId> leave(const Prompt& prompt) { return leave(prompt, pool_); }

  /// Allocates `blocks` device blocks; their evicted content goes to `evicted_`.
  std::vector<BlockId> take(std::size_t blocks, DomainId domain = {}) {
    evicted_.clear();
    return pool_.allocate(Tier::device, blocks, domain, &evicted_).value();
  }
  /// As `take`, then demotes the evicted content and releases the blocks.
  std::vector<Demotion> push_out(std::size_t blocks, DomainId domain = {}) {
    const auto taken = take(blocks, domain);
    auto demotions = keep_evicted(pool_, evicted_);
    pool_.release(taken);
    return demotions;
  }
  /// How many blocks of the prompt one tier has, from its start. Checks their bytes.
  std::size_t found(const Prompt& prompt, Tier tier) {
    const PrefixHit hit = match_all(peer_, prompt, tier);
    for (std::size_t i = 0; i < hit.blocks.size(); ++i)
      EXPECT_TRUE(is_payload_right(memory_, hit.blocks[i], prompt.chain[i])) << i;
    peer_.cancel(hit);
    return hit.blocks.size();
  }
  static std::vector<std::uint32_t> copied(std::span<const Demotion> demotions) {
    std::vector<std::uint32_t> sources;
    for (const Demotion& d : demotions)
      if (!d.is_on_host_already) sources.push_back(d.content.block.value);
    return sources;
  }

  PoolMemory memory_;
  BlockPool pool_{memory_, ProcessSlot{0}};
  BlockPool peer_{memory_, ProcessSlot{1}};
  std::vector<Evicted> evicted_;
};

TEST_F(DemotionTest, EvictedContentIsUnchangedInTheHostTier) {
  const Prompt p = prompt(0, 3);
  const auto blocks = leave(p);
  std::vector<std::vector<std::uint64_t>> before;
  for (const std::size_t i : {2, 1, 0}) before.push_back(identity(memory_, blocks[i]));
  const auto demotions = push_out(6);
  ASSERT_THAT(demotions, SizeIs(3));
  for (std::size_t i = 0; i < 3; ++i)
    EXPECT_EQ(identity(memory_, demotions[i].destination), before[i]) << i;
  EXPECT_EQ(found(p, Tier::device), 0u);
  EXPECT_EQ(found(p, Tier::host), 3u);
  EXPECT_EQ(pool_.counters()["demoted_blocks"].load(), 3u);
  EXPECT_EQ(pool_.available(Tier::host), 4u);
}

TEST_F(DemotionTest, ExtraKeysAreKept) {
  const Prompt p = prompt(0, 1);
  const ExtraKey extra{3, 4};
  const Hash128 name = pool_.hasher().child(pool_.hasher().root({}), p.of_blocks(0, 1), extra);
  const auto block = pool_.allocate(Tier::device, 1).value();
  fill_payload(memory_, block[0], name);
  pool_.publish(BlockPool::root({}), block, {{name}}, p.of_blocks(0, 1), {{extra}});
  pool_.release(block);
  push_out(6);
  const auto look = [&](std::span<const ExtraKey> extras) {
    const PrefixHit hit =
        peer_.match(Tier::host, BlockPool::root({}), {{name}}, p.of_blocks(0, 1), extras);
    peer_.cancel(hit);
    return hit.blocks.size();
  };
  EXPECT_EQ(look({{extra}}), 1u);
  EXPECT_EQ(look({}), 0u);
}

TEST_F(DemotionTest, ASequenceContinuesFromOneTierInTheOther) {
  const Prompt p = prompt(0, 4);
  leave(p);
  push_out(4);  // two more are taken from the free blocks
  const PrefixHit start = match_all(peer_, p);
  EXPECT_THAT(start.blocks, SizeIs(2));
  const PrefixHit rest = peer_.match(Tier::host, start.end, p.names(2, 2), p.of_blocks(2, 2));
  EXPECT_THAT(rest.blocks, SizeIs(2));
  peer_.cancel(rest);
  peer_.cancel(start);
}

TEST_F(DemotionTest, ADemotedBlockIsFoundOnlyAfterItsBytesAreCopied) {
  const Prompt p = prompt(0, 3);
  leave(p);
  const auto taken = take(6);
  const auto demotions = pool_.demote(evicted_);
  EXPECT_EQ(found(p, Tier::host), 0u);
  move_out(pool_, evicted_, demotions);
  EXPECT_EQ(found(p, Tier::host), 0u);
  pool_.finish_demotion(demotions);
  EXPECT_EQ(found(p, Tier::host), 3u);
  pool_.release(taken);
}

TEST_F(DemotionTest, AFlippedStateBitDoesNotExposeAnUnfinishedDemotion) {
  const Prompt p = prompt(0, 3);
  leave(p);
  take(6);
  for (const Demotion& demotion : pool_.demote(evicted_)) {
    auto& word = memory_.descriptors()[demotion.destination.value].word;
    const BlockWord before{word.load()};
    word.store(BlockWord::make(BlockState::ready, before.generation(), before.holders()).bits);
    PrefixIndex(memory_.index(), memory_.layout().index_buckets)
        .insert(demotion.content.name, demotion.destination);
    EXPECT_EQ(found(p, Tier::host), 0u);
    word.store(before.bits);
  }
  reap(memory_, ProcessSlot{0});
}

TEST_F(DemotionTest, AnEvictedBlockMayBePublishedBeforeItsDemotionFinishes) {
  const Prompt p = prompt(0, 2), next = prompt(100, 2);
  leave(p);
  const auto taken = take(6);
  const auto demotions = pool_.demote(evicted_);
  move_out(pool_, evicted_, demotions);
  // The evicted blocks' rows and names are overwritten before the copies are published.
  pool_.announce(std::span(taken).last(2), next.chain);
  for (const std::size_t i : {0, 1}) fill_payload(memory_, taken[4 + i], next.chain[i]);
  pool_.publish(BlockPool::root({}), std::span(taken).last(2), next.chain, next.of_blocks(0, 2));
  pool_.finish_demotion(demotions);
  pool_.release(taken);
  EXPECT_EQ(found(p, Tier::host), 2u);
  EXPECT_EQ(found(next, Tier::device), 2u);
}

TEST_F(DemotionTest, ContentInTheHostTierIsNotCopiedButCountsAsUsed) {
  const Prompt p = prompt(0, 2), q = prompt(100, 2);
  leave(p);
  push_out(6);
  leave(q);
  push_out(6);
  leave(p);
  const auto again = push_out(6);
  EXPECT_THAT(again, SizeIs(2));
  EXPECT_THAT(copied(again), IsEmpty());
  pool_.release(pool_.allocate(Tier::host, 2).value());
  EXPECT_EQ(found(p, Tier::host), 2u);
  EXPECT_EQ(found(q, Tier::host), 0u) << "released longest ago";
}

TEST_F(DemotionTest, ContentStillInTheDeviceTierIsNotCopied) {
  const Prompt p = prompt(0, 2);
  // Two processes that begin at the same moment both compute the prompt.
  const auto first = pool_.allocate(Tier::device, 2).value();
  const auto second = peer_.allocate(Tier::device, 2).value();
  for (BlockPool* pool : {&pool_, &peer_}) {
    const auto& blocks = pool == &pool_ ? first : second;
    for (const std::size_t i : {0, 1}) fill_payload(memory_, blocks[i], p.chain[i]);
    pool->publish(BlockPool::root({}), blocks, p.chain, p.of_blocks(0, 2));
    pool->release(blocks);
  }
  EXPECT_THAT(push_out(4), IsEmpty());
  EXPECT_THAT(copied(push_out(6)), SizeIs(2));
  EXPECT_EQ(found(p, Tier::host), 2u);
}

TEST_F(DemotionTest, ContentEvictedTwiceAtOnceIsCopiedOnce) {
  const Prompt p = prompt(0, 1);
  const auto first = pool_.allocate(Tier::device, 1).value();
  const auto second = pool_.allocate(Tier::device, 1).value();
  for (const auto& block : {first, second}) {
    fill_payload(memory_, block[0], p.chain[0]);
    pool_.publish(BlockPool::root({}), block, p.chain, p.of_blocks(0, 1));
  }
  pool_.release(first);
  pool_.release(second);
  EXPECT_THAT(push_out(6), SizeIs(1));
}

TEST_F(DemotionTest, TheHostTierEvictsWhatWasDemotedLongestAgoEndsFirst) {
  const Prompt p = prompt(0, 3), q = prompt(100, 2);
  leave(p);
  push_out(6);
  leave(q);
  push_out(6);  // the host tier has four blocks for five
  EXPECT_EQ(found(p, Tier::host), 2u);
  EXPECT_EQ(found(q, Tier::host), 2u);
  pool_.release(pool_.allocate(Tier::host, 3).value());
  EXPECT_EQ(found(p, Tier::host), 0u);
  EXPECT_EQ(found(q, Tier::host), 1u);
}

TEST_F(DemotionTest, AHostTierTooSmallKeepsTheStartsOfSequences) {
  const Prompt p = prompt(0, 6);
  leave(Prompt(pool_, counting(0, 18)));
  const auto demotions = push_out(6);
  EXPECT_THAT(demotions, SizeIs(4));
  EXPECT_EQ(found(p, Tier::host), 4u);
}

TEST_F(DemotionTest, AHostTierInUseTakesNothing) {
  const auto held = peer_.allocate(Tier::host, 4).value();
  leave(prompt(0, 3));
  EXPECT_THAT(push_out(6), IsEmpty());
  EXPECT_EQ(pool_.available(Tier::device), 6u);
  peer_.release(held);
}

TEST_F(DemotionTest, AnAllocationThatFailsReportsNothing) {
  leave(prompt(0, 3));
  const auto held = peer_.allocate(Tier::device, 3).value();
  EXPECT_FALSE(pool_.allocate(Tier::device, 4, {}, &evicted_));
  EXPECT_THAT(evicted_, IsEmpty());
  peer_.release(held);
}

TEST_F(DemotionTest, TheJournalTellsADemotionFromAnEviction) {
  leave(prompt(0, 1));
  push_out(6);
  pool_.release(pool_.allocate(Tier::host, 4).value());
  std::vector<Departure> kinds;
  for (const DepartureRecord& record : EvictionJournal(memory_).read())
    kinds.push_back(record.kind);
  EXPECT_THAT(kinds, ElementsAre(Departure::evicted, Departure::demoted, Departure::evicted));
}

TEST_F(DemotionTest, BytesOfAnotherDomainAreZeroedAfterTheyAreCopied) {
  const Prompt p = prompt(0, 2, kTheirs);
  leave(p);
  const auto taken = take(6, kOurs);
  ASSERT_THAT(evicted_, SizeIs(2));
  for (const Evicted& content : evicted_) {
    EXPECT_EQ(pool_.domain_of(content.block), kTheirs);
    EXPECT_TRUE(is_payload_right(memory_, content.block, content.name));
  }
  EXPECT_EQ(pool_.domain_of(taken[0]), kOurs) << "free blocks are handed over at once";
  keep_evicted(pool_, evicted_);
  for (const Evicted& content : evicted_) {
    EXPECT_EQ(pool_.domain_of(content.block), kOurs);
    EXPECT_THAT(std::span(payload_of(memory_, content.block), 8 * payload_words(memory_)),
                Each(std::byte{0}));
  }
  EXPECT_EQ(found(p, Tier::host), 2u);
  EXPECT_EQ(found(prompt(0, 2, kOurs), Tier::host), 0u);
  pool_.release(taken);
}

TEST_F(DemotionTest, NothingIsPublishedInABlockThatWasNotHandedOver) {
  leave(prompt(0, 2, kTheirs));
  const auto taken = take(6, kOurs);
  const Prompt next = prompt(100, 1, kOurs);
  pool_.publish(BlockPool::root(kOurs), std::span(taken).last(1), next.chain, next.of_blocks(0, 1));
  EXPECT_EQ(found(next, Tier::device), 0u);
  pool_.release(taken);
}

TEST_F(DemotionTest, AHostBlockOfAnotherDomainIsHandedOverFirst) {
  const auto host = peer_.allocate(Tier::host, 4, kTheirs).value();
  for (const BlockId block : host)
    std::fill_n(payload_of(memory_, block), 8 * payload_words(memory_), std::byte{0x5e});
  peer_.release(host);
  leave(prompt(0, 2, kOurs));
  const auto taken = take(6, kOurs);
  const auto demotions = pool_.demote(evicted_);
  for (const Demotion& demotion : demotions) {
    EXPECT_EQ(pool_.domain_of(demotion.destination), kOurs);
    EXPECT_THAT(std::span(payload_of(memory_, demotion.destination), 8 * payload_words(memory_)),
                Each(std::byte{0}));
  }
  move_out(pool_, evicted_, demotions);
  pool_.finish_demotion(demotions);
  pool_.release(taken);
}

TEST_F(DemotionTest, WithoutScrubbingBlocksAreHandedOverAsTheyAre) {
  BlockPool careless(memory_, ProcessSlot{0}, Scrub::never);
  const Prompt p = prompt(0, 2, kTheirs);
  leave(p, careless);
  const auto taken = careless.allocate(Tier::device, 6, kOurs, &evicted_).value();
  for (const Evicted& content : evicted_) EXPECT_EQ(pool_.domain_of(content.block), kOurs);
  keep_evicted(careless, evicted_);
  EXPECT_EQ(found(p, Tier::host), 2u);
  careless.release(taken);
}

TEST_F(DemotionTest, AProcessKilledBeforeTheBytesAreCopiedLeavesNoHostBlock) {
  const Prompt p = prompt(0, 3);
  leave(p);
  take(6);
  (void)pool_.demote(evicted_);
  const ReapReport report = reap(memory_, ProcessSlot{0});
  EXPECT_EQ(report.freed, 9u);
  EXPECT_EQ(found(p, Tier::host), 0u);
  EXPECT_EQ(peer_.available(Tier::device), 6u);
  EXPECT_EQ(peer_.available(Tier::host), 4u);
}

TEST_F(DemotionTest, ContentWithoutAUidIsNotKept) {
  leave(prompt(0, 2));
  take(6);
  evicted_[0].uid = 0;
  EXPECT_THAT(copied(keep_evicted(pool_, evicted_)), ElementsAre(evicted_[1].block.value));
}

class WithoutAHostTier : public DemotionTest {
 protected:
  WithoutAHostTier() : DemotionTest(0) {}
};

TEST_F(WithoutAHostTier, NothingIsKept) {
  leave(prompt(0, 3));
  EXPECT_THAT(push_out(6), IsEmpty());
}

}  // namespace
}  // namespace kvhive::testing
