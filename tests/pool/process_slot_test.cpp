#include "pool/processes/process_slot.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include "pool/block_pool.hpp"
#include "pool/care/pool_report.hpp"
#include "pool/care/reaper.hpp"
#include "tests/support/private_pool.hpp"
#include "tests/support/request.hpp"

namespace kvhive::testing {
namespace {

TEST(ProcessSlot, SigningInNamesTheProcess) {
  const PoolMemory memory = private_pool(small_geometry(8));
  sign_in(memory, ProcessSlot{2}, 5);
  const ProcessEntry& entry = memory.control().processes[2];
  EXPECT_EQ(entry.pid.load(), std::uint32_t(getpid()));
  EXPECT_EQ(entry.index.load(), 5u);
  EXPECT_GT(entry.started.load(), 0);
}

TEST(ProcessSlot, TheNextProcessCountsFromZeroAndTotalsIncludeDeadProcesses) {
  const PoolMemory memory = private_pool(small_geometry(8));
  for (std::uint32_t life = 0; life < 3; ++life) {
    sign_in(memory, ProcessSlot{0}, 0);
    EXPECT_EQ(report_pool(memory).processes.at(0).counted["generated_tokens"], 0u);
    SlotCounters& counters = memory.control().processes[0].counters;
    bump(counters["generated_tokens"], 100);
    bump(counters["running"], 7);
    EXPECT_EQ(report_pool(memory).processes.at(0).counted["generated_tokens"], 100u);
    EXPECT_EQ(report_pool(memory).processes.at(0).counted["running"], 7u);
    EXPECT_EQ(report_pool(memory).totals["generated_tokens"], 100u * (life + 1));
    reap(memory, ProcessSlot{0});
    EXPECT_EQ(report_pool(memory).totals["generated_tokens"], 100u * (life + 1));
    EXPECT_EQ(report_pool(memory).totals["running"], 0u);
  }
}

TEST(ProcessSlot, TheSumOfUsedBlocksStaysRightAcrossADeath) {
  const PoolMemory memory = private_pool(small_geometry(8));
  BlockPool survivor(memory, ProcessSlot{1});
  sign_in(memory, ProcessSlot{0}, 0);
  {
    BlockPool first(memory, ProcessSlot{0});
    const Prompt prompt(first, counting(0, 8));
    const Request request = admit(first, prompt).value();
    (void)match_all(survivor, prompt);
    first.release(request.blocks);  // `first` counted them as used; the survivor's release will
                                    // count them as unused
  }
  reap(memory, ProcessSlot{0});
  sign_in(memory, ProcessSlot{0}, 0);
  BlockPool second(memory, ProcessSlot{0});
  EXPECT_EQ(second.available(Tier::device), 5u);
  survivor.release(std::vector{BlockId{1}, BlockId{2}});
  EXPECT_EQ(second.available(Tier::device), 7u);
}

}  // namespace
}  // namespace kvhive::testing
