#include "pool/care/pool_report.hpp"

#include <gmock/gmock.h>

#include "pool/block_pool.hpp"
#include "tests/support/private_pool.hpp"
#include "tests/support/request.hpp"

namespace kvhive::testing {
namespace {

TEST(PoolReport, CountsEveryBlockOnceByState) {
  const PoolMemory memory = private_pool(small_geometry(16, 4));
  occupy(memory, ProcessSlot{0}, 111);
  occupy(memory, ProcessSlot{5}, 222);
  BlockPool first(memory, ProcessSlot{0}), second(memory, ProcessSlot{5});
  const Prompt prompt(first, counting(0, 9));
  (void)admit(first, prompt).value();                   // two held, one filling
  leave_idle(first, Prompt(first, counting(100, 12)));  // three idle
  (void)match_all(second, prompt);                      // two shared
  (void)second.allocate(Tier::host, 1).value();

  const PoolReport report = report_pool(memory);
  EXPECT_EQ(report.geometry, memory.geometry());
  EXPECT_EQ(report.epoch.size(), 32u);
  const TierReport& device = report.tiers[0];
  EXPECT_EQ(device.blocks, 15u);
  EXPECT_EQ(device.filling, 1u);
  EXPECT_EQ(device.held, 2u);
  EXPECT_EQ(device.shared, 2u);
  EXPECT_EQ(device.idle, 3u);
  EXPECT_EQ(device.free, 9u);
  EXPECT_EQ(device.retired, 0u);
  EXPECT_EQ(report.tiers[1].filling, 1u);
  EXPECT_EQ(report.tiers[1].free, 3u);

  ASSERT_EQ(report.processes.size(), 2u);
  EXPECT_EQ(report.processes[0].pid, 111u);
  EXPECT_EQ(report.processes[0].held_blocks[0], 3u);
  EXPECT_EQ(report.processes[0].counted["published_blocks"], 5u);
  EXPECT_EQ(report.processes[1].slot, 5u);
  EXPECT_EQ(report.processes[1].counted["allocated_blocks"], 1u);
  EXPECT_EQ(report.totals["published_blocks"], 5u);
  EXPECT_EQ(report.processes[1].held_blocks[1], 1u);
}

TEST(PoolReport, ListsEveryBlockButTheNullBlock) {
  const PoolMemory memory = private_pool(small_geometry(8, 2));
  occupy(memory, ProcessSlot{0});
  BlockPool pool(memory, ProcessSlot{0});
  leave_idle(pool, Prompt(pool, counting(0, 8), DomainId{3}));
  std::vector<BlockReport> blocks;
  for_each_block(memory, [&](const BlockReport& block) { blocks.push_back(block); });
  ASSERT_EQ(blocks.size(), 9u);
  EXPECT_EQ(blocks[0].id, BlockId{1});
  EXPECT_EQ(blocks[8].tier, Tier::host);
  EXPECT_TRUE(blocks[1].word.is_idle());
  EXPECT_EQ(blocks[1].depth, 1u);
  EXPECT_EQ(blocks[1].domain, DomainId{3});
  EXPECT_EQ(blocks[1].parent_uid, blocks[0].uid);
  EXPECT_GT(blocks[0].stamp, blocks[1].stamp)
      << "the end of a sequence is evicted first, so its stamp is lower";
  const auto domains = report_domains(memory);
  ASSERT_EQ(domains.size(), 1u) << "a domain without blocks and limits is left out";
  EXPECT_EQ(domains.at(DomainId{3}).idle, 2u);
  EXPECT_EQ(domains.at(DomainId{3}).held, 0u);
}

TEST(PoolReport, ABlockInAnUnknownStateCountsAsRetired) {
  const PoolMemory memory = private_pool(small_geometry(4));
  memory.descriptors()[2].word.store(BlockWord::make(BlockState(6), 0, 0).bits);
  EXPECT_EQ(report_pool(memory).tiers[0].retired, 1u);
}

}  // namespace
}  // namespace kvhive::testing
