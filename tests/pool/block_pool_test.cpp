#include "pool/block_pool.hpp"

#include <gmock/gmock.h>

#include "pool/care/fsck.hpp"
#include "pool/care/reaper.hpp"
#include "tests/support/private_pool.hpp"
#include "tests/support/request.hpp"
#include "tests/support/sanitizers.hpp"

namespace kvhive::testing {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using Ids = std::vector<std::uint32_t>;

/// A pool with processes in slots 0 and 1, and the first one's BlockPool.
struct Bench {
  explicit Bench(PoolGeometry geometry)
      : memory(private_pool(geometry)), pool(memory, ProcessSlot{0}) {
    occupy(memory, ProcessSlot{0});
    occupy(memory, ProcessSlot{1});
  }
  ~Bench() { EXPECT_THAT(fsck(memory).violations, IsEmpty()); }

  Ids queue(Tier tier = Tier::device) const { return numbers(pool.free_queue(tier)); }

  /// Publishes the prompt's first block. The caller holds the block.
  BlockId publish_one(const Prompt& prompt, Tier tier = Tier::device) {
    const auto blocks = pool.allocate(tier, 1, prompt.domain).value();
    pool.publish(BlockPool::root(prompt.domain), blocks, prompt.names(0, 1),
                 prompt.of_blocks(0, 1));
    return blocks[0];
  }

  PoolMemory memory;
  BlockPool pool;
};

/// vLLM's tests use 16 tokens a block and 11 blocks.
struct VllmBench : Bench {
  VllmBench() : Bench(small_geometry(11, 0, 16)) {}
};

std::vector<TokenId> repeated(TokenId token, std::size_t count) {
  return std::vector<TokenId>(count, token);
}

// -- vLLM's traces

TEST(BlockPool, EvictsLeastRecentlyReleasedAndTailsFirst) {  // test_evict
  VllmBench b;
  const Request first = admit(b.pool, Prompt(b.pool, counting(0, 5 * 16 + 7))).value();
  const Request second = admit(b.pool, Prompt(b.pool, counting(1000, 3 * 16))).value();
  EXPECT_EQ(numbers(first.blocks), (Ids{1, 2, 3, 4, 5, 6}));
  EXPECT_EQ(numbers(second.blocks), (Ids{7, 8, 9}));

  b.pool.release(first.blocks);
  EXPECT_EQ(b.queue(), (Ids{6, 10, 5, 4, 3, 2, 1}));
  b.pool.release(second.blocks);
  EXPECT_EQ(b.queue(), (Ids{6, 10, 5, 4, 3, 2, 1, 9, 8, 7}));

  const Request third =
      admit(b.pool, Prompt(b.pool, joined(counting(0, 2 * 16), repeated(-3, 3)))).value();
  EXPECT_EQ(numbers(third.blocks), (Ids{1, 2, 6}));
  EXPECT_EQ(b.queue(), (Ids{10, 5, 4, 3, 9, 8, 7}));
  b.pool.release(third.blocks);
}

TEST(BlockPool, SharesPrefixesAndHandsBlocksOutInQueueOrder) {  // test_prefill
  VllmBench b;
  const std::vector<TokenId> common =
      joined(joined(repeated(0, 16), repeated(1, 16)), repeated(2, 16));
  const Request first = admit(b.pool, Prompt(b.pool, joined(common, repeated(3, 7)))).value();
  EXPECT_EQ(numbers(first.blocks), (Ids{1, 2, 3, 4}));
  const Request second = admit(b.pool, Prompt(b.pool, joined(common, repeated(3, 5)))).value();
  EXPECT_EQ(second.hits, 3u);
  EXPECT_EQ(numbers(second.blocks), (Ids{1, 2, 3, 5}));
  for (std::uint32_t id : {1, 2, 3}) EXPECT_EQ(b.pool.references(BlockId{id}), 2u);

  b.pool.release(first.blocks);
  b.pool.release(second.blocks);
  EXPECT_EQ(b.queue(), (Ids{5, 4, 6, 7, 8, 9, 10, 3, 2, 1}));

  const Request third = admit(b.pool, Prompt(b.pool, joined(common, repeated(3, 6)))).value();
  EXPECT_EQ(numbers(third.blocks), (Ids{1, 2, 3, 5}));
  b.pool.release(third.blocks);

  const Request miss = admit(b.pool, Prompt(b.pool, repeated(99, 160))).value();
  EXPECT_EQ(miss.hits, 0u);
  EXPECT_EQ(numbers(miss.blocks), (Ids{5, 4, 6, 7, 8, 9, 10, 3, 2, 1}));
  b.pool.release(miss.blocks);
}

TEST(BlockPool, ReusedBlockForgetsItsContent) {  // test_hash_block_correct_reuse
  Bench b(small_geometry(2, 0, 16));
  const Prompt old(b.pool, counting(0, 16));
  leave_idle(b.pool, old);
  const auto reused = b.pool.allocate(Tier::device, 1).value();
  EXPECT_THAT(match_all(b.pool, old).blocks, IsEmpty());
  b.pool.release(reused);
  EXPECT_THAT(match_all(b.pool, old).blocks, IsEmpty());
}

TEST(BlockPool, HitBlockIsNotTheVictim) {  // test_computed_blocks_not_evicted
  Bench b(small_geometry(3, 0, 16));
  leave_idle(b.pool, Prompt(b.pool, counting(0, 16)));
  const Request other = leave_idle(b.pool, Prompt(b.pool, counting(100, 16)));
  const Request both = admit(b.pool, Prompt(b.pool, counting(0, 32))).value();
  EXPECT_EQ(both.hits, 1u);
  EXPECT_EQ(both.blocks[1], other.blocks[0]);
  b.pool.release(both.blocks);
}

TEST(BlockPool, ShortageTouchesNothing) {  // test_prefill_not_enough_free_blocks_with_computed...
  VllmBench b;
  const Request held = admit(b.pool, Prompt(b.pool, counting(0, 48))).value();
  leave_idle(b.pool, Prompt(b.pool, counting(0, 96)));
  const Request other = admit(b.pool, Prompt(b.pool, counting(500, 70))).value();
  const Ids before = b.queue();
  const Prompt longer(b.pool, counting(0, 16 * 9));

  EXPECT_FALSE(admit(b.pool, longer).has_value());
  EXPECT_EQ(b.queue(), before);
  EXPECT_EQ(b.pool.references(held.blocks[0]), 1u);
  const PrefixHit still = match_all(b.pool, longer);
  EXPECT_EQ(still.blocks.size(), 5u);
  b.pool.cancel(still);
  EXPECT_EQ(b.queue(), before);
  b.pool.release(held.blocks);
  b.pool.release(other.blocks);
}

/// Whether they have content or not.
TEST(BlockPool, AFullPoolHandsOutWhatIsGivenBackAndNoMore) {  // V0: test_free_prevents_oom
  for (const bool is_published : {false, true}) {
    Bench b(small_geometry(9));
    const Prompt prompt(b.pool, counting(0, 32));
    const auto held = b.pool.allocate(Tier::device, 8).value();
    if (is_published)
      b.pool.publish(BlockPool::root({}), held, prompt.chain, prompt.of_blocks(0, 8));
    const auto last = std::span(held).last(1);
    for (int round = 0; round < 100; ++round) {
      EXPECT_FALSE(b.pool.allocate(Tier::device, 1).has_value());
      b.pool.release(last);
      EXPECT_EQ(b.pool.available(Tier::device), 1u);
      EXPECT_EQ(b.pool.allocate(Tier::device, 1).value()[0], last[0]);
    }
    for (std::size_t i = 0; i < 8; ++i) {  // V0: test_get_num_free_blocks
      EXPECT_EQ(b.pool.available(Tier::device), i);
      b.pool.release(std::span(held).subspan(i, 1));
    }
  }
}

TEST(BlockPool, InAFullPoolWhatIsHeldIsStillFound) {  // V0: test_allocate_immutable_ooms_many_hash
  Bench b(small_geometry(9));
  const Prompt prompt(b.pool, counting(0, 32));
  const Request holder = admit(b.pool, prompt).value();
  EXPECT_FALSE(admit(b.pool, Prompt(b.pool, counting(500, 4))).has_value());
  EXPECT_FALSE(b.pool.allocate(Tier::device, 1).has_value());
  const PrefixHit again = match_all(b.pool, prompt);
  EXPECT_EQ(again.blocks, holder.blocks);
  // V0: test_get_num_free_blocks_shared
  for (const BlockId block : holder.blocks) {
    b.pool.release(std::vector{block});
    EXPECT_EQ(b.pool.available(Tier::device), 0u);
  }
  for (std::size_t i = 0; i < 8; ++i) {
    EXPECT_EQ(b.pool.available(Tier::device), i);
    b.pool.release(std::span(again.blocks).subspan(i, 1));
  }
}

TEST(BlockPool, OfAPrefixTheEndIsEvictedFirst) {  // V0: test_find_cached_blocks_prefix
  Bench b(small_geometry(9));
  const Prompt prompt(b.pool, counting(0, 32));
  leave_idle(b.pool, prompt);
  for (std::size_t left = 8; left > 0; --left) {
    const PrefixHit hit = match_all(b.pool, prompt);
    EXPECT_EQ(hit.blocks.size(), left);
    b.pool.cancel(hit);
    (void)b.pool.allocate(Tier::device, 1).value();
  }
}

/// An evicted block that comes back without content goes before all that have content.
TEST(BlockPool,
     AnEvictedBlockIsTakenAgainBeforeAnotherIsEvicted) {  // V0: test_eviction_alloc_mixed
  Bench b(small_geometry(4));
  std::vector<Prompt> prompts;
  for (const TokenId first : {0, 100, 200}) prompts.emplace_back(b.pool, counting(first, 4));
  for (const Prompt& prompt : prompts) leave_idle(b.pool, prompt);
  const auto found = [&](std::size_t which) {
    const PrefixHit hit = match_all(b.pool, prompts[which]);
    b.pool.cancel(hit);
    return hit.blocks.size();
  };
  const auto oldest = b.pool.allocate(Tier::device, 1).value();
  EXPECT_EQ(numbers(oldest), Ids{1});
  b.pool.release(oldest);
  EXPECT_EQ(b.queue(), (Ids{1, 2, 3}));
  EXPECT_EQ(numbers(admit(b.pool, prompts[0]).value().blocks), Ids{1});
  for (const std::size_t which : {0u, 1u, 2u}) EXPECT_EQ(found(which), 1u) << which;
  EXPECT_EQ(numbers(b.pool.allocate(Tier::device, 1).value()), Ids{2});
  EXPECT_EQ(found(1), 0u);
}

TEST(BlockPool, FullyCachedPromptComputesItsWholeLastBlock) {
  VllmBench b;
  const Prompt prompt(b.pool, counting(0, 48));
  leave_idle(b.pool, prompt);
  const Request again = admit(b.pool, prompt).value();
  EXPECT_EQ(again.hits, 2u);
  EXPECT_EQ(numbers(again.blocks), (Ids{1, 2, 4}));
  b.pool.release(again.blocks);
}

// -- match

TEST(BlockPool, FindsNothingInAnEmptyPool) {
  Bench b(small_geometry(8));
  const PrefixHit hit = match_all(b.pool, Prompt(b.pool, counting(0, 20)));
  EXPECT_THAT(hit.blocks, IsEmpty());
  EXPECT_EQ(hit.end.depth, 0u);
  EXPECT_EQ(hit.end.uid, BlockPool::root(DomainId{0}).uid);
}

TEST(BlockPool, MatchOfNoBlocksFindsNothing) {
  Bench b(small_geometry(8));
  EXPECT_THAT(b.pool.match(Tier::device, BlockPool::root({}), {}, {}).blocks, IsEmpty());
}

TEST(BlockPool, MatchStopsWhereTokensDiffer) {
  Bench b(small_geometry(16));
  leave_idle(b.pool, Prompt(b.pool, counting(0, 16)));
  std::vector<TokenId> tokens = counting(0, 16);
  tokens[9] = 77;
  const PrefixHit hit = match_all(b.pool, Prompt(b.pool, tokens));
  EXPECT_EQ(numbers(hit.blocks), (Ids{1, 2}));
  EXPECT_EQ(hit.end.depth, 2u);
  b.pool.release(hit.blocks);
}

TEST(BlockPool, MatchGoesOnFromWhereAnotherEnded) {
  Bench b(small_geometry(16));
  const Prompt prompt(b.pool, counting(0, 16));
  leave_idle(b.pool, prompt);
  const PrefixHit front = match_blocks(b.pool, prompt, 2);
  const PrefixHit back =
      b.pool.match(Tier::device, front.end, prompt.names(2, 2), prompt.of_blocks(2, 2));
  EXPECT_EQ(numbers(back.blocks), (Ids{3, 4}));
  EXPECT_EQ(back.end.depth, 4u);
  b.pool.release(front.blocks);
  b.pool.release(back.blocks);
}

TEST(BlockPool, SameTokensAfterAnotherPrefixAreAnotherBlock) {
  Bench b(small_geometry(16));
  leave_idle(b.pool, Prompt(b.pool, joined(counting(0, 4), counting(50, 4))));
  const PrefixHit hit = match_all(b.pool, Prompt(b.pool, joined(counting(9, 4), counting(50, 4))));
  EXPECT_THAT(hit.blocks, IsEmpty());
}

TEST(BlockPool, EqualHashWithOtherTokensIsNoHit) {
  Bench b(small_geometry(16));
  const Prompt real(b.pool, counting(0, 4));
  leave_idle(b.pool, real);
  Prompt collision(b.pool, counting(100, 4));
  collision.chain = real.chain;  // as if both had the same hash
  EXPECT_THAT(match_all(b.pool, collision).blocks, IsEmpty());

  // Both blocks may be in the pool at the same time under the same name.
  leave_idle(b.pool, collision);
  const PrefixHit first = match_all(b.pool, real);
  const PrefixHit second = match_all(b.pool, collision);
  EXPECT_EQ(numbers(first.blocks), Ids{1});
  EXPECT_EQ(numbers(second.blocks), Ids{2});
  EXPECT_NE(first.end.uid, second.end.uid);
  b.pool.release(first.blocks);
  b.pool.release(second.blocks);
  // Evicts all content: fsck would report a name that is not the hash of the block's tokens.
  (void)b.pool.allocate(Tier::device, 15).value();
}

TEST(BlockPool, EqualHashWithAnotherParentIsNoHit) {
  Bench b(small_geometry(16));
  const Prompt real(b.pool, counting(0, 8));
  leave_idle(b.pool, real);
  const Prompt other(b.pool, counting(100, 4));
  const Request held = admit(b.pool, other).value();
  const PrefixHit hit =
      b.pool.match(Tier::device, held.end, real.names(1, 1), real.of_blocks(1, 1));
  EXPECT_THAT(hit.blocks, IsEmpty());
  b.pool.release(held.blocks);
}

TEST(BlockPool, DomainsNeverHitEachOther) {
  Bench b(small_geometry(16));
  const Prompt ours(b.pool, counting(0, 12), DomainId{1});
  const Prompt theirs(b.pool, counting(0, 12), DomainId{2});
  leave_idle(b.pool, ours);
  EXPECT_THAT(match_all(b.pool, theirs).blocks, IsEmpty());
  // Not even with the other domain's names: the root of the sequence differs.
  EXPECT_THAT(
      b.pool.match(Tier::device, BlockPool::root(DomainId{2}), ours.chain, ours.of_blocks(0, 3))
          .blocks,
      IsEmpty());
  leave_idle(b.pool, theirs);
  const PrefixHit hit = match_all(b.pool, theirs);
  EXPECT_EQ(numbers(hit.blocks), (Ids{4, 5, 6}));
  b.pool.release(hit.blocks);
}

TEST(BlockPool, ExtraKeysTellBlocksApart) {
  Bench b(small_geometry(16));
  const BlockHasher hasher = b.pool.hasher();
  const Prefix root = BlockPool::root({});
  const auto tokens = counting(0, 4);
  const std::vector<ExtraKey> cat{{1, 2}}, dog{{1, 3}};
  const auto name = [&](const ExtraKey& extra) {
    return std::vector<Hash128>{hasher.child(hasher.root({}), tokens, extra)};
  };

  const auto block = b.pool.allocate(Tier::device, 1).value();
  b.pool.publish(root, block, name(cat[0]), tokens, cat);
  b.pool.release(block);

  const auto found = [&](const std::vector<ExtraKey>& extras, const ExtraKey& named) {
    const PrefixHit hit = b.pool.match(Tier::device, root, name(named), tokens, extras);
    b.pool.cancel(hit);
    return hit.blocks.size();
  };
  EXPECT_EQ(found(cat, cat[0]), 1u);
  EXPECT_EQ(found(dog, dog[0]), 0u);
  EXPECT_EQ(found({}, kNoExtraKey), 0u);
  // The stored extra key is compared, too: an equal name alone is no hit.
  EXPECT_EQ(found(dog, cat[0]), 0u);
  EXPECT_EQ(found({}, cat[0]), 0u);
}

TEST(BlockPool, CountsWhatWasAllocatedPublishedAndEvicted) {
  Bench b(small_geometry(16));
  const Prompt prompt(b.pool, counting(0, 12));
  leave_idle(b.pool, prompt);
  b.pool.release(match_all(b.pool, prompt).blocks);
  EXPECT_EQ(b.pool.counters()["queried_blocks"].load(), 0u)
      << "the block manager counts queries, not the pool";
  EXPECT_EQ(b.pool.counters()["hit_blocks"].load(), 0u);
  EXPECT_EQ(b.pool.counters()["allocated_blocks"].load(), 3u);
  EXPECT_EQ(b.pool.counters()["published_blocks"].load(), 3u);
  EXPECT_EQ(b.pool.counters()["evicted_blocks"].load(), 0u);
  b.pool.release(b.pool.allocate(Tier::device, 14).value());
  EXPECT_EQ(b.pool.counters()["evicted_blocks"].load(), 2u);
}

// -- duplicates

TEST(BlockPool, MatchFindsTheFirstPublishedOfEqualBlocks) {
  Bench b(small_geometry(16));
  const Prompt prompt(b.pool, counting(0, 4));
  const BlockId first = b.publish_one(prompt);
  const BlockId second = b.publish_one(prompt);
  EXPECT_NE(first, second);
  const PrefixHit hit = match_all(b.pool, prompt);
  EXPECT_THAT(hit.blocks, ElementsAre(first));
  b.pool.release(hit.blocks);
  b.pool.release(std::vector{first, second});
}

TEST(BlockPool, EvictingOneOfEqualBlocksKeepsTheOther) {  // test_maybe_evict_cached_block
  for (const bool evict_first : {true, false}) {
    Bench b(small_geometry(3));
    const Prompt prompt(b.pool, counting(0, 4));
    const BlockId first = b.publish_one(prompt);
    const BlockId second = b.publish_one(prompt);
    const BlockId victim = evict_first ? first : second;
    const BlockId survivor = evict_first ? second : first;
    b.pool.release(std::vector{victim});
    EXPECT_THAT(b.pool.allocate(Tier::device, 1).value(), ElementsAre(victim));
    const PrefixHit hit = match_all(b.pool, prompt);
    EXPECT_THAT(hit.blocks, ElementsAre(survivor));
    b.pool.release(hit.blocks);
  }
}

TEST(BlockPool, ChildrenStayReachableThroughAnEqualParent) {
  Bench b(small_geometry(4));
  const Prompt parent(b.pool, counting(0, 4));
  const Prompt family(b.pool, counting(0, 8));
  const BlockId first = b.publish_one(parent);
  const auto second = b.pool.allocate(Tier::device, 1).value();
  const Prefix adopted =
      b.pool.publish(BlockPool::root({}), second, parent.names(0, 1), parent.of_blocks(0, 1));
  const auto child = b.pool.allocate(Tier::device, 1).value();
  b.pool.publish(adopted, child, family.names(1, 1), family.of_blocks(1, 1));

  b.pool.release(std::vector{first});
  EXPECT_THAT(b.pool.allocate(Tier::device, 1).value(), ElementsAre(first));
  const PrefixHit hit = match_all(b.pool, family);
  EXPECT_THAT(hit.blocks, ElementsAre(second[0], child[0]));
  b.pool.release(hit.blocks);
}

TEST(BlockPool, ACopyInTheOtherTierGetsTheSameUid) {
  Bench b(small_geometry(4, 4));
  const Prompt family(b.pool, counting(0, 8));
  const Request request = admit(b.pool, Prompt(b.pool, counting(0, 9))).value();
  const auto copy = b.pool.allocate(Tier::host, 1).value();
  const Prefix of_copy =
      b.pool.publish(BlockPool::root({}), copy, family.names(0, 1), family.of_blocks(0, 1));
  // The copy on the host continues into the child on the device.
  const PrefixHit child =
      b.pool.match(Tier::device, of_copy, family.names(1, 1), family.of_blocks(1, 1));
  EXPECT_THAT(child.blocks, ElementsAre(request.blocks[1]));
  b.pool.release(child.blocks);
  b.pool.release(joined_ids(request.blocks, copy));
}

// -- allocate and release

TEST(BlockPool, AllocateIsAllOrNothing) {
  Bench b(small_geometry(8));
  leave_idle(b.pool, Prompt(b.pool, counting(0, 12)));
  const Ids before = b.queue();
  const auto refused = b.pool.allocate(Tier::device, 8);
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, Errc::pool_exhausted);
  EXPECT_THAT(refused.error().text, ::testing::HasSubstr("need 8 device blocks, 7 of 7"));
  EXPECT_EQ(b.queue(), before);
  EXPECT_EQ(b.pool.available(Tier::device), 7u);
  EXPECT_TRUE(b.pool.allocate(Tier::device, 7).has_value());
}

TEST(BlockPool, AllocatingNothingSucceeds) {
  Bench b(small_geometry(2));
  EXPECT_THAT(b.pool.allocate(Tier::device, 0).value(), IsEmpty());
  (void)b.pool.allocate(Tier::device, 1).value();
  EXPECT_THAT(b.pool.allocate(Tier::device, 0).value(), IsEmpty());
}

TEST(BlockPool, NeverHandsOutTheNullBlock) {
  Bench b(small_geometry(4));
  EXPECT_EQ(numbers(b.pool.allocate(Tier::device, 3).value()), (Ids{1, 2, 3}));
  EXPECT_FALSE(b.pool.allocate(Tier::device, 1).has_value());
}

TEST(BlockPool, UnpublishedBlocksAreReusedFirstInReverseOrder) {
  Bench b(small_geometry(8));
  const auto blocks = b.pool.allocate(Tier::device, 3).value();
  b.pool.release(blocks);
  EXPECT_EQ(b.queue(), (Ids{3, 2, 1, 4, 5, 6, 7}));
  EXPECT_EQ(numbers(b.pool.allocate(Tier::device, 4).value()), (Ids{3, 2, 1, 4}));
}

TEST(BlockPool, CancelKeepsTheReleaseOrder) {
  Bench b(small_geometry(8));
  const Prompt old(b.pool, counting(0, 8));
  leave_idle(b.pool, old);
  leave_idle(b.pool, Prompt(b.pool, counting(100, 8)));
  const Ids before = b.queue();
  b.pool.cancel(match_all(b.pool, old));
  EXPECT_EQ(b.queue(), before);
  b.pool.release(match_all(b.pool, old).blocks);
  EXPECT_NE(b.queue(), before);
}

TEST(BlockPool, CancelAfterAnEvictionKeepsTheReleaseOrder) {
  Bench b(small_geometry(5));
  const Prompt old(b.pool, counting(0, 4));
  const Request oldest = leave_idle(b.pool, old);
  const Request middle = leave_idle(b.pool, Prompt(b.pool, counting(100, 4)));
  const Request newest = leave_idle(b.pool, Prompt(b.pool, counting(200, 4)));
  const PrefixHit hit = match_all(b.pool, old);
  const auto evicted = b.pool.allocate(Tier::device, 2).value();  // the free block and `middle`
  EXPECT_EQ(evicted[1], middle.blocks[0]);
  b.pool.cancel(hit);
  // One at a time: an allocation that runs out of hints scans, and would find the block anyway.
  EXPECT_EQ(b.pool.allocate(Tier::device, 1).value(), oldest.blocks);
  EXPECT_EQ(b.pool.allocate(Tier::device, 1).value(), newest.blocks);
}

TEST(BlockPool, ReleasesEachReferenceOnce) {
  Bench b(small_geometry(8));
  const Prompt prompt(b.pool, counting(0, 4));
  const Request request = admit(b.pool, prompt).value();
  b.pool.fork(request.blocks);
  EXPECT_EQ(b.pool.references(request.blocks[0]), 2u);
  b.pool.release(request.blocks);
  EXPECT_EQ(b.pool.available(Tier::device), 6u);
  b.pool.release(request.blocks);
  EXPECT_EQ(b.pool.references(request.blocks[0]), 0u);
  EXPECT_EQ(b.pool.available(Tier::device), 7u);
}

TEST(BlockPool, ReleasesBothTiersAtOnce) {
  Bench b(small_geometry(4, 4));
  const auto device = b.pool.allocate(Tier::device, 2).value();
  const auto host = b.pool.allocate(Tier::host, 2).value();
  EXPECT_EQ(numbers(host), (Ids{4, 5}));
  b.pool.release(joined_ids(device, host));
  EXPECT_EQ(b.queue(Tier::device), (Ids{2, 1, 3}));
  EXPECT_EQ(b.queue(Tier::host), (Ids{5, 4, 6, 7}));
}

TEST(BlockPool, TiersRunOutSeparately) {
  Bench b(small_geometry(3, 2));
  EXPECT_EQ(b.pool.capacity(Tier::device), 2u);
  EXPECT_EQ(b.pool.capacity(Tier::host), 2u);
  (void)b.pool.allocate(Tier::host, 2).value();
  const auto refused = b.pool.allocate(Tier::host, 1);
  ASSERT_FALSE(refused.has_value());
  EXPECT_THAT(refused.error().text, ::testing::HasSubstr("host"));
  EXPECT_TRUE(b.pool.allocate(Tier::device, 2).has_value());
}

TEST(BlockPool, PoolWithoutHostTierHasNoHostBlocks) {
  Bench b(small_geometry(3));
  EXPECT_EQ(b.pool.capacity(Tier::host), 0u);
  EXPECT_FALSE(b.pool.allocate(Tier::host, 1).has_value());
}

TEST(BlockPool, HostBlocksAreFoundInTheHostTierOnly) {
  Bench b(small_geometry(4, 4));
  const Prompt prompt(b.pool, counting(0, 4));
  const BlockId block = b.publish_one(prompt, Tier::host);
  EXPECT_THAT(match_all(b.pool, prompt).blocks, IsEmpty());
  const PrefixHit hit = match_all(b.pool, prompt, Tier::host);
  EXPECT_THAT(hit.blocks, ElementsAre(block));
  b.pool.release(hit.blocks);
  b.pool.release(std::vector{block});
}

TEST(BlockPool, GenerationMovesOnWithEveryUseAndWraps) {
  Bench b(small_geometry(2));
  auto& word = b.memory.descriptors()[1].word;
  word.store(BlockWord::make(BlockState::free, BlockWord::kGenerationMask, 0).bits);
  const Prompt prompt(b.pool, counting(0, 4));
  leave_idle(b.pool, prompt);
  EXPECT_EQ(BlockWord{word.load()}.generation(), 0u);
  b.pool.release(match_all(b.pool, prompt).blocks);
  b.pool.release(b.pool.allocate(Tier::device, 1).value());
  EXPECT_EQ(BlockWord{word.load()}.generation(), 1u);
  EXPECT_EQ(b.queue(), Ids{1});
}

// -- fork and copy on write

TEST(BlockPool, OwnUnpublishedBlockIsWritable) {
  Bench b(small_geometry(8));
  const auto block = b.pool.allocate(Tier::device, 1).value()[0];
  const CopyOnWrite copy = b.pool.make_writable(block).value();
  EXPECT_EQ(copy.source, block);
  EXPECT_EQ(copy.destination, block);
}

TEST(BlockPool, ForkedBlockIsCopiedBeforeItIsWritten) {
  Bench b(small_geometry(8));
  const auto blocks = b.pool.allocate(Tier::device, 1).value();
  b.pool.fork(blocks);
  const CopyOnWrite copy = b.pool.make_writable(blocks[0]).value();
  EXPECT_EQ(copy.source, blocks[0]);
  EXPECT_NE(copy.destination, blocks[0]);
  b.pool.release(std::vector{copy.source});
  EXPECT_EQ(b.pool.make_writable(blocks[0]).value().destination, blocks[0]);
}

/// The one that writes first gets a block of its own. The other keeps the old one.
TEST(BlockPool, AForkTakesABlockOnlyWhenOneOfTheTwoWrites) {  // V0: test_fork, test_cow
  Bench b(small_geometry(9));
  const auto blocks = b.pool.allocate(Tier::device, 3).value();
  b.pool.fork(blocks);
  EXPECT_EQ(b.pool.available(Tier::device), 5u);
  const CopyOnWrite copy = b.pool.make_writable(blocks[2]).value();
  b.pool.release(std::vector{copy.source});
  EXPECT_EQ(b.pool.available(Tier::device), 4u);
  EXPECT_EQ(b.pool.make_writable(blocks[2]).value().destination, blocks[2])
      << "the other is alone with it now";
  EXPECT_EQ(b.pool.available(Tier::device), 4u);
  b.pool.release(blocks);
  EXPECT_EQ(b.pool.available(Tier::device), 5u) << "the first two are shared";
  b.pool.release(std::vector{blocks[0], blocks[1], copy.destination});
  EXPECT_EQ(b.pool.available(Tier::device), 8u);
}

TEST(BlockPool, PublishedBlockIsCopiedEvenWithOneReference) {
  Bench b(small_geometry(8));
  const BlockId block = b.publish_one(Prompt(b.pool, counting(0, 4)));
  EXPECT_NE(b.pool.make_writable(block).value().destination, block);
}

TEST(BlockPool, CopyOnWriteNeedsABlock) {
  Bench b(small_geometry(2));
  const BlockId block = b.publish_one(Prompt(b.pool, counting(0, 4)));
  const auto refused = b.pool.make_writable(block);
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, Errc::pool_exhausted);
  EXPECT_EQ(b.pool.references(block), 1u);
}

// -- two processes

TEST(BlockPool, OneProcessFindsWhatAnotherPublished) {
  Bench b(small_geometry(8));
  BlockPool other(b.memory, ProcessSlot{1});
  const Prompt prompt(b.pool, counting(0, 8));
  const Request ours = admit(b.pool, prompt).value();
  const PrefixHit theirs = match_all(other, prompt);
  EXPECT_EQ(theirs.blocks, ours.blocks);
  EXPECT_EQ(BlockWord{b.memory.descriptors()[1].word.load()}.holders(), 0b11u);

  b.pool.release(ours.blocks);
  EXPECT_EQ(b.pool.available(Tier::device), 5u);
  EXPECT_FALSE(b.pool.allocate(Tier::device, 6).has_value())
      << "the other process still holds two blocks";
  other.release(theirs.blocks);
  EXPECT_EQ(b.pool.available(Tier::device), 7u);
  EXPECT_TRUE(b.pool.allocate(Tier::device, 7).has_value());
}

TEST(BlockPool, ABlockIsNotFoundBeforeItIsPublished) {
  Bench b(small_geometry(8));
  BlockPool other(b.memory, ProcessSlot{1});
  const Prompt prompt(b.pool, counting(0, 4));
  const auto block = b.pool.allocate(Tier::device, 1).value();
  EXPECT_THAT(match_all(other, prompt).blocks, IsEmpty());
  b.pool.publish(BlockPool::root({}), block, prompt.names(0, 1), prompt.of_blocks(0, 1));
  const PrefixHit hit = match_all(other, prompt);
  EXPECT_EQ(hit.blocks, block);
  other.release(hit.blocks);
}

TEST(BlockPool, AnotherProcessCanTakeReleasedBlocks) {
  Bench b(small_geometry(5));
  BlockPool other(b.memory, ProcessSlot{1});
  const auto blocks = b.pool.allocate(Tier::device, 4).value();
  EXPECT_FALSE(other.allocate(Tier::device, 1).has_value());
  b.pool.release(blocks);
  const auto taken = other.allocate(Tier::device, 3).value();
  EXPECT_EQ(numbers(taken), (Ids{1, 2, 3}));
  // The first process still has blocks 1 to 3 in its private stack; their words say they are taken.
  EXPECT_EQ(numbers(b.pool.allocate(Tier::device, 1).value()), Ids{4});
}

TEST(BlockPool, ReleaseOrderIsSharedByAllProcesses) {
  Bench b(small_geometry(5));
  BlockPool other(b.memory, ProcessSlot{1});
  const Request a = leave_idle(b.pool, Prompt(b.pool, counting(0, 4)));
  const Request c = leave_idle(other, Prompt(other, counting(100, 4)));
  const Request d = leave_idle(b.pool, Prompt(b.pool, counting(200, 4)));
  const Request e = leave_idle(other, Prompt(other, counting(300, 4)));
  EXPECT_EQ(other.allocate(Tier::device, 1).value(), a.blocks);
  EXPECT_EQ(b.pool.allocate(Tier::device, 1).value(), c.blocks);
  EXPECT_EQ(b.pool.allocate(Tier::device, 1).value(), d.blocks);
  EXPECT_EQ(other.allocate(Tier::device, 1).value(), e.blocks);
}

// -- lost and wrong hints

TEST(BlockPool, LostIndexCostsMissesOnly) {
  Bench b(small_geometry(8));
  const Prompt prompt(b.pool, counting(0, 12));
  leave_idle(b.pool, prompt);
  for (std::size_t i = 0; i < b.memory.layout().index_buckets; ++i)
    for (auto& way : b.memory.index()[i].way) way.store(0);
  EXPECT_THAT(match_all(b.pool, prompt).blocks, IsEmpty());
  EXPECT_EQ(fsck(b.memory).unhinted, 3u);
  const Request again = leave_idle(b.pool, prompt);
  EXPECT_EQ(again.hits, 0u);
  EXPECT_EQ(match_all(b.pool, prompt).blocks, again.blocks);
  b.pool.release(again.blocks);
  EXPECT_TRUE(b.pool.allocate(Tier::device, 7).has_value());
}

TEST(BlockPool, WrongHintsAreDropped) {
  Bench b(small_geometry(8));
  const Prompt prompt(b.pool, counting(0, 4));
  const Prompt other(b.pool, counting(100, 4));
  leave_idle(b.pool, other);
  PrefixIndex index(b.memory.index(), b.memory.layout().index_buckets);
  index.insert(prompt.chain[0], BlockId{999'999});  // beyond the pool
  index.insert(prompt.chain[0], BlockId{7});        // holds nothing
  index.insert(prompt.chain[0], BlockId{1});        // holds something else
  EXPECT_THAT(match_all(b.pool, prompt).blocks, IsEmpty());
  int left = 0;
  index.for_each(prompt.chain[0], [&](BlockId) { return ++left, PrefixIndex::HintUse::keep; });
  EXPECT_EQ(left, 0);
}

TEST(BlockPool, LostFreeHintsAreFoundAgain) {
  Bench b(small_geometry(200, 10));
  for (const Tier tier : {Tier::device, Tier::host}) {
    const auto& layout = b.memory.tier_layout(tier);
    for (std::size_t i = 0; i < layout.bitmap_words; ++i) b.memory.bitmap(tier)[i].store(0);
    for (std::size_t i = 0; i < layout.summary_words; ++i) b.memory.summary(tier)[i].store(0);
    EXPECT_TRUE(b.pool.allocate(tier, b.pool.capacity(tier)).has_value());
    EXPECT_FALSE(b.pool.allocate(tier, 1).has_value());
  }
}

TEST(BlockPool, ALappedRingKeepsTheReleaseOrder) {
  Bench b(small_geometry(8));
  std::vector<Prompt> prompts;
  for (TokenId i = 0; i < 7; ++i) prompts.emplace_back(b.pool, counting(i * 100, 4));
  Ids expected;
  for (const Prompt& prompt : prompts)
    expected.push_back(leave_idle(b.pool, prompt).blocks[0].value);
  const std::size_t laps = 4 * b.memory.tier_layout(Tier::device).ring_slots;
  for (std::size_t i = 0; i < laps; ++i) b.pool.release(match_all(b.pool, prompts[6]).blocks);
  EXPECT_EQ(b.queue(), expected);
  EXPECT_EQ(numbers(b.pool.allocate(Tier::device, 3).value()), (Ids{1, 2, 3}));
  b.pool.cancel(match_all(b.pool, prompts[3]));
  EXPECT_EQ(numbers(b.pool.allocate(Tier::device, 4).value()), (Ids{4, 5, 6, 7}));
}

TEST(BlockPool, AnEmptiedRingIsReplacedByAScan) {
  Bench b(small_geometry(8));
  for (TokenId i = 0; i < 7; ++i) leave_idle(b.pool, Prompt(b.pool, counting(i * 100, 4)));
  const auto& layout = b.memory.tier_layout(Tier::device);
  for (std::size_t i = 0; i < layout.ring_slots; ++i)
    b.memory.ring(Tier::device)[i].store(0xffffffff);
  EXPECT_EQ(numbers(b.pool.allocate(Tier::device, 7).value()), (Ids{1, 2, 3, 4, 5, 6, 7}));
  EXPECT_THAT(fsck(b.memory).violations, Contains(HasSubstr("not of the tier")));
  for (std::size_t i = 0; i < layout.ring_slots; ++i) b.memory.ring(Tier::device)[i].store(0);
}

// -- errors of the caller

/// V0: test_allocate_ooms, test_free_prevents_oom and the allocator's DoubleFreeError.
TEST(BlockPool, TooFewBlocksAndADoubleFreeAreErrorsThatChangeNothing) {
  Bench b(small_geometry(5));
  const auto blocks = b.pool.allocate(Tier::device, 3).value();
  const auto more = b.pool.allocate(Tier::device, 2);
  ASSERT_FALSE(more.has_value());
  EXPECT_EQ(more.error().code, Errc::pool_exhausted);
  b.pool.fork(std::vector{blocks[0]});
  const auto refused = [&](const std::vector<BlockId>& list) {
    const std::uint32_t held = b.pool.references(blocks[0]);
    const std::size_t before = b.pool.available(Tier::device);
    const auto released = b.pool.try_release(list);
    EXPECT_EQ(b.pool.available(Tier::device), before);
    EXPECT_EQ(b.pool.references(blocks[0]), held);
    return released ? std::string("released")
                    : std::string(to_string(released.error().code)) + ": " + released.error().text;
  };
  EXPECT_THAT(refused({blocks[1], blocks[2], blocks[1]}),
              AllOf(HasSubstr("not_held: block " + std::to_string(blocks[1].value)),
                    HasSubstr("released 2 times, and this process holds it 1 times")));
  EXPECT_THAT(refused({blocks[0], blocks[0], blocks[0]}), HasSubstr("holds it 2 times"));
  EXPECT_THAT(refused({BlockId{99}}), HasSubstr("none of the pool's"));
  EXPECT_TRUE(b.pool.try_release(blocks));
  EXPECT_THAT(refused({blocks[1]}), HasSubstr("holds it 0 times")) << "it was released before";
  EXPECT_TRUE(b.pool.try_release(std::vector{blocks[0]}));
  EXPECT_THAT(b.pool.allocate(Tier::device, 4).value(), SizeIs(4)) << "all are free again";
}

using BlockPoolDeathTest = ::testing::Test;

TEST(BlockPoolDeathTest, ReleasingWhatIsNotHeldAborts) {
  if (kUnderThreadSanitizer) GTEST_SKIP();
  Bench b(small_geometry(8));
  EXPECT_DEATH(b.pool.release(std::vector{BlockId{3}}), "check failed: .*count_.block.value. > 0");
  EXPECT_DEATH(b.pool.fork(std::vector{BlockId{3}}), "check failed");
  EXPECT_DEATH(b.pool.cancel(PrefixHit{{BlockId{3}}, {}}), "check failed");
}

TEST(BlockPoolDeathTest, PublishingTwiceAborts) {
  if (kUnderThreadSanitizer) GTEST_SKIP();
  Bench b(small_geometry(8));
  const Prompt prompt(b.pool, counting(0, 4));
  const BlockId block = b.publish_one(prompt);
  EXPECT_DEATH(b.pool.publish(BlockPool::root({}), std::vector{block}, prompt.names(0, 1),
                              prompt.of_blocks(0, 1)),
               "check failed");
}

TEST(BlockPoolDeathTest, SlotBeyondTheMaskAborts) {
  if (kUnderThreadSanitizer) GTEST_SKIP();
  Bench b(small_geometry(8));
  EXPECT_DEATH(BlockPool(b.memory, ProcessSlot{kMaxProcesses}), "check failed");
}

TEST(BlockPool, OwnIsWhatThisProcessHasPublishedNotWhatAnEarlierOneOfItsSlotHas) {
  const PoolMemory memory = private_pool(small_geometry(9));
  const auto [before, now, theirs] = [&] {
    BlockPool earlier(memory, ProcessSlot{0});
    const std::array all{Prompt(earlier, counting(0, 8)), Prompt(earlier, counting(100, 8)),
                         Prompt(earlier, counting(200, 8))};
    leave_idle(earlier, all[0]);
    return all;
  }();
  BlockPool pool(memory, ProcessSlot{0}), other(memory, ProcessSlot{1});
  leave_idle(pool, now);
  leave_idle(other, theirs);
  const auto is_own = [&](const Prompt& prompt) {
    const PrefixHit hit = match_all(pool, prompt);
    EXPECT_EQ(hit.blocks.size(), 2u);
    return pool.is_own(hit.blocks.at(1));
  };
  EXPECT_FALSE(is_own(before));
  EXPECT_TRUE(is_own(now));
  EXPECT_FALSE(is_own(theirs));
}

}  // namespace
}  // namespace kvhive::testing
