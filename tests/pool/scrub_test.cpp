// A block's bytes are zeroed before the block is handed to another domain.

#include <gmock/gmock.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <tuple>

#include "pool/care/fsck.hpp"
#include "pool/care/reaper.hpp"
#include "tests/support/payload.hpp"
#include "tests/support/private_pool.hpp"
#include "tests/support/request.hpp"

namespace kvhive::testing {
namespace {

using ::testing::Each;
using ::testing::IsEmpty;

constexpr DomainId kTheirs{1}, kOurs{2};
constexpr std::byte kSecret{0x5e};

/// A pool with blocks in both tiers and processes in slots 0 and 1.
class ScrubTest : public ::testing::Test {
 protected:
  ScrubTest() {
    for (const ProcessSlot slot : {ProcessSlot{0}, ProcessSlot{1}}) occupy(memory_, slot);
  }
  ~ScrubTest() override { EXPECT_THAT(fsck(memory_).violations, IsEmpty()); }

  std::span<std::byte> payload(BlockId block) const {
    return {payload_of(memory_, block), memory_.geometry().models[0].kv.block_bytes()};
  }
  void fill(std::span<const BlockId> blocks, std::byte with = kSecret) const {
    for (const BlockId block : blocks) std::ranges::fill(payload(block), with);
  }
  static std::vector<BlockId> take_all(BlockPool& pool, DomainId domain) {
    auto all = pool.allocate(Tier::device, pool.capacity(Tier::device), domain).value();
    return joined_ids(all, pool.allocate(Tier::host, pool.capacity(Tier::host), domain).value());
  }
  std::vector<std::byte> bytes_of(std::span<const BlockId> blocks) const {
    std::vector<std::byte> bytes;
    for (const BlockId block : blocks)
      bytes.insert(bytes.end(), payload(block).begin(), payload(block).end());
    return bytes;
  }
  DomainId owner(BlockId block) const { return {memory_.descriptors()[block.value].domain.load()}; }

  PoolMemory memory_ = private_pool(small_geometry(16, 8));
  BlockPool pool_{memory_, ProcessSlot{0}};
};

TEST_F(ScrubTest, AFreeBlockOfAnotherDomainIsZeroedInBothTiers) {
  const auto theirs = take_all(pool_, kTheirs);
  fill(theirs);
  pool_.release(theirs);
  const auto ours = take_all(pool_, kOurs);
  ASSERT_EQ(ours.size(), 23u);
  EXPECT_THAT(bytes_of(ours), Each(std::byte{0}));
  for (const BlockId block : ours) EXPECT_EQ(owner(block), kOurs);
  pool_.release(ours);
}

TEST_F(ScrubTest, AnEvictedBlockOfAnotherDomainIsZeroed) {
  for (TokenId i = 0; i < 5; ++i) {
    const Prompt prompt(pool_, counting(i * 100, 12), kTheirs);
    const Request request = admit(pool_, prompt).value();
    fill(request.blocks);
    pool_.release(request.blocks);
  }
  const auto ours = pool_.allocate(Tier::device, 15, kOurs).value();
  EXPECT_THAT(bytes_of(ours), Each(std::byte{0}));
  pool_.release(ours);
}

TEST_F(ScrubTest, ABlockThatStaysInItsDomainKeepsItsBytes) {
  const auto first = take_all(pool_, kTheirs);
  fill(first);
  pool_.release(first);
  const auto again = take_all(pool_, kTheirs);
  EXPECT_THAT(bytes_of(again), Each(kSecret)) << "zeroing is only needed between domains";
  pool_.release(again);
}

TEST_F(ScrubTest, AnotherProcessesBytesAreZeroed) {
  BlockPool other(memory_, ProcessSlot{1});
  const auto theirs = take_all(other, kTheirs);
  fill(theirs);
  other.release(theirs);
  const auto ours = take_all(pool_, kOurs);
  EXPECT_THAT(bytes_of(ours), Each(std::byte{0}));
  pool_.release(ours);
}

TEST_F(ScrubTest, ADeadProcessesBytesAreZeroed) {
  {
    BlockPool dead(memory_, ProcessSlot{1});
    fill(take_all(dead, kTheirs));  // the process is killed while it fills them
  }
  reap(memory_, ProcessSlot{1});
  const auto ours = take_all(pool_, kOurs);
  EXPECT_THAT(bytes_of(ours), Each(std::byte{0}));
  pool_.release(ours);
}

TEST_F(ScrubTest, ACopyOnWriteStaysInItsDomain) {
  fill(take_all(pool_, kTheirs));
  BlockPool other(memory_, ProcessSlot{1});
  reap(memory_, ProcessSlot{0});
  const Prompt prompt(other, counting(0, 4), kOurs);
  const Request request = admit(other, prompt).value();
  const auto copy = other.make_writable(request.blocks[0]).value();
  EXPECT_NE(copy.destination, copy.source);
  EXPECT_EQ(owner(copy.destination), kOurs);
  EXPECT_THAT(bytes_of({{copy.destination}}), Each(std::byte{0}));
  other.release({{copy.destination}});
  other.release(request.blocks);
}

/// A request that asks for too much is refused before anything is zeroed.
TEST_F(ScrubTest, ARefusalScrubsNothing) {
  const auto theirs = take_all(pool_, kTheirs);
  fill(theirs);
  pool_.release(theirs);
  EXPECT_FALSE(pool_.allocate(Tier::device, 16, kOurs).has_value());
  const auto again = take_all(pool_, kTheirs);
  EXPECT_THAT(bytes_of(again), Each(kSecret));
  pool_.release(again);
}

TEST_F(ScrubTest, ScrubNeverLeavesTheBytes) {
  const auto theirs = take_all(pool_, kTheirs);
  fill(theirs);
  pool_.release(theirs);
  BlockPool careless(memory_, ProcessSlot{1}, Scrub::never);
  const auto ours = take_all(careless, kOurs);
  EXPECT_THAT(bytes_of(ours), Each(kSecret));
  for (const BlockId block : ours) EXPECT_EQ(owner(block), kOurs);
  careless.release(ours);
}

/// A NaN that one domain leaves in a block must not stay: zero times NaN would be NaN.
TEST_F(ScrubTest, NoNanReachesAnotherDomain) {
  const auto theirs = take_all(pool_, kTheirs);
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const BlockId block : theirs)
    for (std::size_t i = 0; i < payload(block).size(); i += sizeof nan)
      std::memcpy(&payload(block)[i], &nan, sizeof nan);
  pool_.release(theirs);
  const auto ours = take_all(pool_, kOurs);
  EXPECT_THAT(bytes_of(ours), Each(std::byte{0}));
  pool_.release(ours);
}

// -- a block's content can only be published in the block's domain

TEST_F(ScrubTest, ABlockTakenForOneDomainIsNotPublishedInAnother) {
  const Prompt ours(pool_, counting(0, 4), kOurs), theirs(pool_, counting(0, 4), kTheirs);
  const auto blocks = pool_.allocate(Tier::device, 1, kTheirs).value();
  pool_.publish(BlockPool::root(kOurs), blocks, ours.chain, ours.tokens);
  EXPECT_THAT(match_all(pool_, ours).blocks, IsEmpty());
  EXPECT_THAT(match_all(pool_, theirs).blocks, IsEmpty());
  pool_.release(blocks);
}

/// Every block is found in the domain that published it, and in no other.
TEST(Domains, HitAllTheirOwnBlocksAndNoneOfOthers) {
  const PoolMemory memory = private_pool(small_geometry(64, 32));
  BlockPool pool(memory, ProcessSlot{0}), other(memory, ProcessSlot{1});
  for (const ProcessSlot slot : {ProcessSlot{0}, ProcessSlot{1}}) occupy(memory, slot);
  const auto tokens = counting(0, 40);
  const DomainId domains[] = {DomainId{0}, DomainId{1}, DomainId{2}, DomainId{65535}};
  for (const DomainId publisher : domains) {
    for (const Tier tier : {Tier::device, Tier::host}) {
      const Prompt prompt(pool, tokens, publisher);
      const auto blocks = pool.allocate(tier, prompt.full_blocks(), publisher).value();
      pool.publish(BlockPool::root(publisher), blocks, prompt.chain, prompt.tokens);
      for (const DomainId asker : domains) {
        const PrefixHit hit = match_all(other, Prompt(other, tokens, asker), tier);
        EXPECT_EQ(hit.blocks.size(), asker == publisher ? 10u : 0u)
            << "published in " << publisher.value << ", asked in " << asker.value;
        other.release(hit.blocks);
      }
      // Evicts the blocks, so that the next publisher finds none of its own.
      pool.release(blocks);
      pool.release(pool.allocate(tier, pool.capacity(tier), publisher).value());
    }
  }
  EXPECT_THAT(fsck(memory).violations, IsEmpty());
}

}  // namespace
}  // namespace kvhive::testing
