#include "pool/care/miss_report.hpp"

#include <gmock/gmock.h>

#include "hashing/cache_salt.hpp"
#include "pool/block_pool.hpp"
#include "pool/care/cache_reset.hpp"
#include "pool/care/repair.hpp"
#include "tests/support/keep_evicted.hpp"
#include "tests/support/private_pool.hpp"
#include "tests/support/request.hpp"

namespace kvhive::testing {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;

class WhyMissed : public ::testing::Test {
 protected:
  WhyMissed() : memory(private_pool(small_geometry(8, 4))), pool(memory, ProcessSlot{2}) {
    occupy(memory, ProcessSlot{2});
  }

  MissReport ask(const Prompt& prompt, std::string_view salt = {}) const {
    return explain_miss(memory, prompt.domain, prompt.tokens, salt);
  }
  std::vector<CacheStatus> verdicts(const Prompt& prompt, std::string_view salt = {}) const {
    std::vector<CacheStatus> all;
    for (const BlockStatus& v : ask(prompt, salt).blocks) all.push_back(v.status);
    return all;
  }
  BlockDescriptor& descriptor(std::uint32_t id) { return memory.descriptors()[id]; }

  PoolMemory memory;
  BlockPool pool;
};

TEST_F(WhyMissed, SaysWhereBlocksAreAndWhichProcessesHoldThem) {
  const Prompt prompt(pool, counting(0, 13));
  const Request request = admit(pool, prompt).value();
  MissReport report = ask(prompt);
  EXPECT_THAT(verdicts(prompt),
              ElementsAre(CacheStatus::present, CacheStatus::present, CacheStatus::present));
  EXPECT_EQ(report.blocks[1].blocks[0], request.blocks[1]);
  EXPECT_EQ(report.blocks[1].blocks[1], kNullBlock);
  EXPECT_EQ(report.blocks[1].holders, 1u << 2);
  EXPECT_EQ(report.matchable, 3u);
  EXPECT_EQ(report.computed_from, 3u);
  pool.release(request.blocks);
  EXPECT_EQ(ask(prompt).blocks[1].holders, 0u);
}

TEST_F(WhyMissed, TheLastTokenIsAlwaysComputed) {
  const Prompt prompt(pool, counting(0, 12));
  leave_idle(pool, prompt);
  const MissReport report = ask(prompt);
  EXPECT_EQ(report.blocks.size(), 3u);
  EXPECT_EQ(report.matchable, 2u);
  EXPECT_EQ(report.computed_from, 2u);
  EXPECT_EQ(ask(Prompt(pool, {})).matchable, 0u);
}

TEST_F(WhyMissed, TellsEvictedFromNeverSeen) {
  const Prompt prompt(pool, counting(0, 13));
  EXPECT_THAT(verdicts(prompt), Each(CacheStatus::never_seen));
  leave_idle(pool, prompt);
  pool.release(pool.allocate(Tier::device, 5).value());  // evicts the prompt's last block
  const MissReport report = ask(prompt);
  EXPECT_THAT(verdicts(prompt),
              ElementsAre(CacheStatus::present, CacheStatus::present, CacheStatus::evicted));
  EXPECT_EQ(report.blocks[2].slot, 2u);
  EXPECT_GT(report.blocks[2].unix_ms, 0);
  EXPECT_EQ(report.computed_from, 2u);
  EXPECT_FALSE(report.has_forgotten);
}

TEST_F(WhyMissed, SaysWhatIsBeingComputed) {
  const Prompt prompt(pool, counting(0, 13));
  leave_idle(pool, Prompt(pool, counting(500, 28)));
  const auto blocks = pool.allocate(Tier::device, 3).value();
  EXPECT_THAT(verdicts(prompt), Each(CacheStatus::never_seen));
  pool.announce(blocks, prompt.chain);
  EXPECT_THAT(verdicts(prompt), Each(CacheStatus::computing));
  EXPECT_EQ(ask(prompt).blocks[0].holders, 1u << 2);
  pool.publish(BlockPool::root({}), blocks, prompt.chain, prompt.of_blocks(0, 3));
  EXPECT_THAT(verdicts(prompt), Each(CacheStatus::present));
}

TEST_F(WhyMissed, AnEvictedBlocksOldContentIsNotBeingComputed) {
  const Prompt prompt(pool, counting(0, 28));
  leave_idle(pool, prompt);
  (void)pool.allocate(Tier::device, 7).value();
  EXPECT_THAT(verdicts(prompt), Each(CacheStatus::evicted));
}

TEST_F(WhyMissed, FindsThePromptInAnotherDomain) {
  const Prompt theirs(pool, counting(0, 9), DomainId{4});
  leave_idle(pool, theirs);
  const MissReport report = ask(Prompt(pool, counting(0, 13)));
  EXPECT_EQ(report.blocks[0].status, CacheStatus::other_domain);
  EXPECT_EQ(report.blocks[1].domain, DomainId{4});
  EXPECT_EQ(report.blocks[2].status, CacheStatus::never_seen);
  EXPECT_EQ(report.computed_from, 0u);
}

TEST_F(WhyMissed, SaysThatACollisionIsRefused) {
  const Prompt prompt(pool, counting(0, 9)), other(pool, counting(100, 4));
  const auto block = pool.allocate(Tier::device, 1).value();
  // The tokens do not hash to the name.
  pool.publish(BlockPool::root({}), block, prompt.names(0, 1), other.tokens);
  EXPECT_THAT(verdicts(prompt), ElementsAre(CacheStatus::collision, CacheStatus::never_seen));
  EXPECT_EQ(match_all(pool, prompt).blocks.size(), 0u);
}

TEST_F(WhyMissed, SaysWhatAResetForgot) {
  const Prompt prompt(pool, counting(0, 13));
  leave_idle(pool, prompt);
  reset_cache(memory);
  const MissReport report = ask(prompt);
  EXPECT_THAT(verdicts(prompt), Each(CacheStatus::forgotten));
  EXPECT_EQ(report.computed_from, 0u);
  leave_idle(pool, Prompt(pool, counting(0, 9)));
  EXPECT_THAT(verdicts(prompt),
              ElementsAre(CacheStatus::present, CacheStatus::present, CacheStatus::forgotten));
}

TEST_F(WhyMissed, SeesBlocksCutOffFromTheirParents) {
  const Prompt prompt(pool, counting(0, 13));
  leave_idle(pool, prompt);
  // The first block is lost and computed again; it gets another uid.
  const auto start =
      pool.match(Tier::device, BlockPool::root({}), prompt.names(0, 1), prompt.of_blocks(0, 1));
  descriptor(start.blocks[0].value).word.store(BlockWord::make(BlockState::free, 1, 0).bits);
  BlockPool other(memory, ProcessSlot{3});
  const auto fresh = other.allocate(Tier::device, 1).value();
  other.publish(BlockPool::root({}), fresh, prompt.names(0, 1), prompt.of_blocks(0, 1));
  EXPECT_EQ(match_all(other, prompt).blocks.size(), 1u);
  EXPECT_THAT(verdicts(prompt),
              ElementsAre(CacheStatus::present, CacheStatus::orphaned, CacheStatus::present));
  EXPECT_EQ(ask(prompt).computed_from, 1u);
}

TEST_F(WhyMissed, SeesThatTheIndexHasLostABlock) {
  const Prompt prompt(pool, counting(0, 13));
  leave_idle(pool, prompt);
  PrefixIndex(memory.index(), memory.layout().index_buckets).erase(prompt.chain[1], BlockId{2});
  EXPECT_THAT(verdicts(prompt),
              ElementsAre(CacheStatus::present, CacheStatus::unhinted, CacheStatus::present));
  EXPECT_EQ(ask(prompt).computed_from, 1u);
}

TEST_F(WhyMissed, TellsRetiredBlocks) {
  const Prompt prompt(pool, counting(0, 13));
  leave_idle(pool, prompt);
  descriptor(2).depth.store(9);
  SlotOwners owners{};
  owners[2].use = SlotOwner::Use::used;
  EXPECT_EQ(repair(memory, owners).retired, 1u);
  EXPECT_EQ(verdicts(prompt)[1], CacheStatus::retired);
}

TEST_F(WhyMissed, SaysThatABlockWasMovedToTheHostTier) {
  const Prompt prompt(pool, counting(0, 13));
  leave_idle(pool, prompt);
  std::vector<Evicted> evicted;
  const auto taken = pool.allocate(Tier::device, 6, {}, &evicted).value();
  EXPECT_EQ(verdicts(prompt)[2], CacheStatus::evicted);
  keep_evicted(pool, evicted);
  pool.release(taken);
  const MissReport report = ask(prompt);
  EXPECT_THAT(verdicts(prompt), Each(CacheStatus::present));
  EXPECT_FALSE(report.blocks[0].was_demoted) << "the block has never left the device";
  EXPECT_TRUE(report.blocks[2].was_demoted);
  EXPECT_EQ(report.blocks[2].slot, 2u);
  EXPECT_GT(report.blocks[2].unix_ms, 0);
  EXPECT_EQ(report.on_host, 2u);

  leave_idle(pool, prompt);  // computes it on the device again
  EXPECT_FALSE(ask(prompt).blocks[2].was_demoted);
  pool.release(pool.allocate(Tier::device, 7).value());
  pool.release(pool.allocate(Tier::host, 4).value());
  EXPECT_THAT(verdicts(prompt), Each(CacheStatus::evicted));
}

TEST_F(WhyMissed, TellsWhatIsCachedUnderAnotherSalt) {
  const Prompt plain(pool, counting(0, 13));
  leave_idle(pool, Prompt(pool, counting(0, 13), {}, salt_key("alice")));
  EXPECT_THAT(verdicts(plain, "alice"), Each(CacheStatus::present));
  EXPECT_EQ(ask(plain, "alice").computed_from, 3u);
  EXPECT_THAT(verdicts(plain, "bob"), Each(CacheStatus::other_salt));
  EXPECT_THAT(verdicts(plain), Each(CacheStatus::other_salt));
  EXPECT_EQ(ask(plain).computed_from, 0u);
  leave_idle(pool, plain);
  EXPECT_THAT(verdicts(plain), Each(CacheStatus::present));
  EXPECT_THAT(verdicts(plain, "bob"), Each(CacheStatus::other_salt));
  const Prompt elsewhere(pool, counting(0, 13), DomainId{1});
  EXPECT_THAT(verdicts(elsewhere, "alice"), Each(CacheStatus::other_domain));
  EXPECT_THAT(verdicts(elsewhere, "bob"), Each(CacheStatus::never_seen))
      << "of another domain, what is under another salt is not told";
}

TEST_F(WhyMissed, GoesOnInTheHostTierWhereTheDeviceEnds) {
  const Prompt prompt(pool, counting(0, 13));
  leave_idle(pool, Prompt(pool, counting(0, 5)));
  const auto host = pool.allocate(Tier::host, 3).value();
  pool.publish(BlockPool::root({}), host, prompt.chain, prompt.of_blocks(0, 3));
  const MissReport report = ask(prompt);
  EXPECT_EQ(report.on_device, 1u);
  EXPECT_EQ(report.on_host, 2u);
  EXPECT_EQ(report.blocks[0].blocks[1], host[0]);
}

}  // namespace
}  // namespace kvhive::testing
