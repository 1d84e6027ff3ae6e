// What a reader of descriptors tells of: compared with what prompts find.

#include "tools/events/pool_content.hpp"

#include <gmock/gmock.h>

#include <map>
#include <random>
#include <set>

#include "pool/care/cache_reset.hpp"
#include "tests/support/keep_evicted.hpp"
#include "tests/support/private_pool.hpp"
#include "tests/support/request.hpp"

namespace kvhive::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

using Key = std::pair<std::uint64_t, Tier>;  ///< a name's low half, and where

/// A subscriber: all that it was told of and that was not taken back.
class Follower {
 public:
  void apply(const ContentChange& change) {
    for (const StoredContent& block : change.stored) {
      EXPECT_TRUE(!block.parent || has(*block.parent)) << "parents come before their children";
      EXPECT_TRUE(blocks_.emplace(Key{block.name.low, block.tier}, block).second) << "told twice";
    }
    for (const RemovedContent& block : change.removed)
      EXPECT_EQ(blocks_.erase({block.name.low, block.tier}), 1u) << "was never told";
  }
  bool has(Hash128 name) const {
    return blocks_.count({name.low, Tier::device}) + blocks_.count({name.low, Tier::host}) != 0;
  }
  std::set<Key> keys() const {
    std::set<Key> keys;
    for (const auto& [key, block] : blocks_) keys.insert(key);
    return keys;
  }
  const std::map<Key, StoredContent>& blocks() const { return blocks_; }

 private:
  std::map<Key, StoredContent> blocks_;
};

std::set<Key> keys_of(const std::vector<StoredContent>& stored) {
  std::set<Key> keys;
  for (const StoredContent& block : stored) keys.insert({block.name.low, block.tier});
  return keys;
}

/// Device blocks 1 to 8 and host blocks 9 to 12, of four tokens each.
class PoolContentTest : public ::testing::Test {
 protected:
  PoolContentTest() : memory_(private_pool(small_geometry(9, 4))) {
    for (const ProcessSlot slot : {ProcessSlot{0}, ProcessSlot{1}}) occupy(memory_, slot);
  }

  Prompt prompt(TokenId first, std::size_t blocks, DomainId domain = {}) {
    return {pool_, counting(first, blocks * 4 + 1), domain};
  }
  /// Publishes the prompt's full blocks in new blocks, whoever else has them, and leaves them idle.
  void publish_anew(BlockPool& pool, const Prompt& prompt) {
    const auto blocks = pool.allocate(Tier::device, prompt.full_blocks(), prompt.domain).value();
    pool.publish(BlockPool::root(prompt.domain), blocks, prompt.chain,
                 prompt.of_blocks(0, prompt.full_blocks()));
    pool.release(blocks);
  }
  /// Takes so many blocks and gives them back empty.
  void evict(std::size_t blocks) { pool_.release(pool_.allocate(Tier::device, blocks).value()); }
  void demote(std::size_t blocks) {
    std::vector<Evicted> evicted;
    const auto taken = pool_.allocate(Tier::device, blocks, {}, &evicted).value();
    keep_evicted(pool_, evicted);
    pool_.release(taken);
  }

  PoolMemory memory_;
  BlockPool pool_{memory_, ProcessSlot{0}};
  BlockPool peer_{memory_, ProcessSlot{1}};
  PoolContent content_{memory_};
};

TEST_F(PoolContentTest, TellsWhatIsPublishedOnce) {
  EXPECT_TRUE(content_.read().is_empty());
  const Prompt p = prompt(100, 3);
  leave_idle(pool_, p);
  const ContentChange change = content_.read();
  ASSERT_THAT(change.stored, SizeIs(3));
  EXPECT_THAT(change.removed, IsEmpty());
  for (std::uint32_t i = 0; i < 3; ++i) {
    const StoredContent& block = change.stored[i];
    EXPECT_EQ(block.name, p.chain[i]);
    EXPECT_EQ(block.depth, i);
    EXPECT_EQ(block.tier, Tier::device);
    EXPECT_EQ(block.tokens, counting(100 + static_cast<TokenId>(4 * i), 4));
    EXPECT_EQ(block.parent, i == 0 ? std::nullopt : std::optional(p.chain[i - 1]));
  }
  EXPECT_TRUE(content_.read().is_empty()) << "nothing has happened since";
  leave_idle(pool_, p);
  EXPECT_TRUE(content_.read().is_empty()) << "a hit changes nothing";
}

TEST_F(PoolContentTest, TellsThatAResetHasRemovedAll) {
  const Prompt p = prompt(100, 3);
  leave_idle(pool_, p);
  const Request running = admit(peer_, prompt(300, 1)).value();
  EXPECT_THAT(content_.read().stored, SizeIs(4));
  reset_cache(memory_);
  EXPECT_THAT(content_.read().removed, SizeIs(4));
  EXPECT_THAT(content_.all(), IsEmpty());
  EXPECT_TRUE(content_.read().is_empty());
  // Sequences that run on publish what nobody finds.
  const Prompt begun = prompt(500, 1);
  const auto first = pool_.allocate(Tier::device, 1).value();
  pool_.publish(BlockPool::root({}), first, begun.names(0, 1), begun.of_blocks(0, 1));
  const Prompt longer = prompt(300, 2);
  const auto more = peer_.allocate(Tier::device, 1).value();
  peer_.publish(running.end, more, longer.names(1, 1), longer.of_blocks(1, 1));
  EXPECT_TRUE(content_.read().is_empty());
  leave_idle(pool_, p);
  EXPECT_EQ(keys_of(content_.read().stored).size(), 3u);
  EXPECT_THAT(content_.all(), SizeIs(3));
}

/// Another process resets the cache, and a third one publishes, while the blocks are being read.
TEST_F(PoolContentTest, TellsOfWhatItSawBeforeItKnewOfTheReset) {
  const Prompt p = prompt(100, 2);
  const auto blocks = pool_.allocate(Tier::device, 2).value();
  pool_.publish(BlockPool::root({}, {}, 0, Resets{1}), blocks, p.chain, p.of_blocks(0, 2));
  EXPECT_TRUE(content_.read().is_empty());
  reset_cache(memory_);
  EXPECT_THAT(content_.read().stored, SizeIs(2));
  EXPECT_TRUE(content_.read().is_empty());
}

TEST_F(PoolContentTest, TellsWhatIsEvictedChildrenFirst) {
  const Prompt p = prompt(100, 3);
  leave_idle(pool_, p);
  (void)content_.read();
  evict(8);
  const ContentChange change = content_.read();
  EXPECT_THAT(change.stored, IsEmpty());
  ASSERT_THAT(change.removed, SizeIs(3));
  EXPECT_EQ(change.removed[0].name, p.chain[2]);
  EXPECT_EQ(change.removed[2].name, p.chain[0]);
  EXPECT_THAT(content_.all(), IsEmpty());
}

TEST_F(PoolContentTest, WhatIsBehindAGapIsNotInThePool) {
  const Prompt p = prompt(100, 3);
  Request request = admit(pool_, p).value();
  (void)content_.read();
  // The first block is released and evicted while the others are still held.
  pool_.release(std::span(request.blocks).first(1));
  evict(pool_.available(Tier::device));
  const ContentChange gap = content_.read();
  EXPECT_THAT(gap.removed, SizeIs(3)) << "no prompt finds the second block without the first";
  EXPECT_EQ(match_all(peer_, p).blocks.size(), 0u);
  pool_.release(std::span(request.blocks).subspan(1));
  // The same tokens again: a content of its own, which the old ones do not follow.
  leave_idle(pool_, prompt(100, 1));
  const ContentChange again = content_.read();
  ASSERT_THAT(again.stored, SizeIs(1));
  EXPECT_EQ(again.stored[0].name, p.chain[0]);
  PrefixHit hit = match_all(peer_, p);
  EXPECT_EQ(hit.blocks.size(), 1u) << "as prompts find it";
  peer_.cancel(hit);
}

TEST_F(PoolContentTest, TwoCopiesAreOneContent) {
  const Prompt p = prompt(100, 1);
  publish_anew(pool_, p);
  publish_anew(peer_, p);
  EXPECT_THAT(content_.read().stored, SizeIs(1));
  // One of the copies goes.
  pool_.release(pool_.allocate(Tier::device, 7).value());
  EXPECT_TRUE(content_.read().is_empty());
  evict(8);
  EXPECT_THAT(content_.read().removed, SizeIs(1));
}

TEST_F(PoolContentTest, AContentMayBeInBothTiers) {
  const Prompt p = prompt(100, 2);
  leave_idle(pool_, p);
  (void)content_.read();
  demote(8);
  const ContentChange demoted = content_.read();
  ASSERT_THAT(demoted.stored, SizeIs(2));
  EXPECT_EQ(demoted.stored[0].tier, Tier::host);
  ASSERT_THAT(demoted.removed, SizeIs(2));
  EXPECT_EQ(demoted.removed[0].tier, Tier::device);
  leave_idle(pool_, p);
  const ContentChange back = content_.read();
  EXPECT_THAT(back.stored, SizeIs(2)) << "computed again on the device";
  Follower follower;
  follower.apply({content_.all(), {}});
  EXPECT_THAT(follower.keys(), SizeIs(4));
}

TEST_F(PoolContentTest, DomainAndExtraKeyAreTold) {
  constexpr DomainId kTeam{3};
  const Prompt p = prompt(100, 1, kTeam);
  const ExtraKey extra{3, 4};
  const Hash128 name = pool_.hasher().child(pool_.hasher().root(kTeam), p.of_blocks(0, 1), extra);
  const auto block = pool_.allocate(Tier::device, 1, kTeam).value();
  pool_.publish(BlockPool::root(kTeam), block, std::span(&name, 1), p.of_blocks(0, 1),
                std::span(&extra, 1));
  const ContentChange change = content_.read();
  ASSERT_THAT(change.stored, SizeIs(1));
  EXPECT_EQ(change.stored[0].domain, kTeam);
  EXPECT_EQ(change.stored[0].extra, extra);
  EXPECT_EQ(change.stored[0].name, name);
}

/// What names a sequence's adapter is in its first block only.
TEST_F(PoolContentTest, EachBlockHasTheKeyThatItsSequenceBeganWith) {
  const Prompt p = prompt(100, 3);
  const ExtraKey start{5, 6};
  std::vector<Hash128> names;
  pool_.hasher().extend(names, {}, p.of_blocks(0, 3), 4, start);
  const std::vector<ExtraKey> extras{start, kNoExtraKey, kNoExtraKey};
  const auto first = pool_.allocate(Tier::device, 3).value();
  pool_.publish(BlockPool::root({}), first, names, p.of_blocks(0, 3), extras);
  const ContentChange change = content_.read();
  ASSERT_THAT(change.stored, SizeIs(3));
  for (const StoredContent& block : change.stored) EXPECT_EQ(block.start, start) << block.depth;
  for (const StoredContent& block : content_.all()) EXPECT_EQ(block.start, start) << block.depth;
  EXPECT_EQ(change.stored[1].extra, kNoExtraKey);
}

/// A subscriber's content, after any history and however seldom it was told, is what prompts find.
TEST_F(PoolContentTest, AfterAnyHistoryItIsWhatPromptsFind) {
  std::vector<Prompt> prompts;
  for (TokenId family = 0; family < 4; ++family)
    for (std::size_t blocks = 1; blocks <= 3; ++blocks)
      for (TokenId end = 0; end < 2; ++end) {
        std::vector<TokenId> tokens = counting(1000 * family, blocks * 4);
        tokens.back() += end;
        tokens.push_back(0);
        prompts.emplace_back(pool_, tokens, DomainId{static_cast<std::uint16_t>(family % 2)});
      }
  std::mt19937 random(14);
  const auto any = [&](std::size_t n) { return random() % n; };
  Follower follower;
  std::size_t most = 0;
  for (int step = 0; step < 4000; ++step) {
    BlockPool& pool = any(2) == 0 ? pool_ : peer_;
    switch (any(8)) {
      case 0: evict(1 + any(8)); break;
      case 1: demote(1 + any(4)); break;
      case 2: publish_anew(pool, prompts[any(prompts.size())]); break;
      default: leave_idle(pool, prompts[any(prompts.size())]);
    }
    if (any(3) != 0) continue;
    follower.apply(content_.read());
    most = std::max(most, follower.blocks().size());
    ASSERT_EQ(follower.keys(), keys_of(content_.all())) << step;

    std::set<std::uint64_t> told, found;
    for (const auto& [key, block] : follower.blocks()) told.insert(key.first);
    for (const Prompt& p : prompts) {
      // As an engine does: the longest prefix on the device, then on in the host tier, block by
      // block.
      Prefix end = BlockPool::root(p.domain);
      std::vector<BlockId> held;
      for (std::size_t i = 0; i < p.full_blocks(); ++i) {
        PrefixHit hit = peer_.match(Tier::device, end, p.names(i, 1), p.of_blocks(i, 1));
        if (hit.blocks.empty())
          hit = peer_.match(Tier::host, end, p.names(i, 1), p.of_blocks(i, 1));
        if (hit.blocks.empty()) break;
        end = hit.end;
        found.insert(p.chain[i].low);
        peer_.cancel(hit);
      }
    }
    for (const std::uint64_t name : found)
      ASSERT_EQ(told.count(name), 1u) << "found and not told, step " << step;
    for (const std::uint64_t name : told)
      ASSERT_EQ(found.count(name), 1u) << "told and not found, step " << step;
  }
  EXPECT_GE(most, 8u);
}

}  // namespace
}  // namespace kvhive::testing
