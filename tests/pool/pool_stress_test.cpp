// Threads in place of processes, each with its own BlockPool and slot over one mapping. They run
// the same code on the same words, and ThreadSanitizer, which cannot see across processes, checks
// it. Payload is read and written as plain memory.

#include <gmock/gmock.h>

#include <thread>

#include "pool/care/fsck.hpp"
#include "pool/care/pool_report.hpp"
#include "pool/care/reaper.hpp"
#include "tests/pool/pool_worker.hpp"
#include "tests/support/private_pool.hpp"
#include "tests/support/sanitizers.hpp"

namespace kvhive::testing {
namespace {

using ::testing::IsEmpty;

constexpr std::uint32_t kWorkers = 4;
constexpr std::uint64_t kRequests = kUnderSanitizer ? 8'000 : 80'000;

void expect_all_there(const PoolMemory& memory) {
  EXPECT_THAT(fsck(memory, Moment::quiescent).violations, IsEmpty());
  occupy(memory, ProcessSlot{30});
  BlockPool pool(memory, ProcessSlot{30});
  for (const Tier tier : {Tier::device, Tier::host}) {
    EXPECT_EQ(pool.available(tier), pool.capacity(tier));
    EXPECT_TRUE(pool.allocate(tier, pool.capacity(tier)).has_value());
  }
}

/// Each runs so many requests; then nothing is wrong, and every block is there.
void run_workers(const PoolMemory& memory, std::uint32_t workers, std::uint64_t requests) {
  std::vector<WorkerProgress> progress(workers);
  {
    std::vector<std::jthread> threads;
    for (std::uint32_t i = 0; i < workers; ++i) {
      occupy(memory, ProcessSlot{i});
      threads.emplace_back([&, i] {
        PoolWorker worker(memory, ProcessSlot{i}, i, WorkerLoad{}, progress[i]);
        worker.run(requests);
        worker.release_everything();
      });
    }
  }
  for (const WorkerProgress& p : progress) {
    EXPECT_EQ(p.wrong.load(), 0u);
    EXPECT_GT(p.verified.load(), 100u);
  }
  expect_all_there(memory);
}

class PoolStress : public ::testing::TestWithParam<std::uint32_t> {};  // device blocks

TEST_P(PoolStress, ConcurrentWorkersReadRightBytesAndLoseNoBlock) {
  run_workers(private_pool(small_geometry(GetParam(), 16)), kWorkers, kRequests);
}

TEST_P(PoolStress, EightWorkersWithWindowsReadRightBytesAndLoseNoBlock) {
  PoolGeometry geometry = small_geometry(2 * GetParam(), 16);
  geometry.models[0].groups.count = 2;
  geometry.models[0].groups.group[1] = {CacheKind::sliding_window, 6};
  run_workers(private_pool(geometry), 8, kRequests / 4);
}

TEST_P(PoolStress, WorkersThatSpareWhatWasHitReadRightBytesAndLoseNoBlock) {
  PoolGeometry geometry = small_geometry(GetParam(), 16);
  geometry.eviction_policy = EvictionPolicy::second_chance;
  run_workers(private_pool(geometry), kWorkers, kRequests);
}

INSTANTIATE_TEST_SUITE_P(Blocks, PoolStress, ::testing::Values(30, 90, 1000));

TEST(PoolStress, FsckReportsAndAReaperMayRunBesideWorkers) {
  const PoolMemory memory = private_pool(small_geometry(120, 16));
  std::vector<WorkerProgress> progress(kWorkers);
  std::atomic<std::uint32_t> working{kWorkers};
  std::vector<std::jthread> threads;
  for (std::uint32_t i = 0; i < kWorkers; ++i) {
    occupy(memory, ProcessSlot{i});
    threads.emplace_back([&, i] {
      PoolWorker worker(memory, ProcessSlot{i}, i, WorkerLoad{}, progress[i]);
      worker.run(kRequests / 4);
      worker.release_everything();
      --working;
    });
  }
  const ProcessSlot mortal{20};
  while (working.load() != 0) {
    occupy(memory, mortal);
    {  // one more process takes blocks and dies without releasing them
      BlockPool pool(memory, mortal);
      (void)pool.allocate(Tier::device, 3);
      (void)match_all(pool, Prompt(pool, std::vector<TokenId>(12, 1)));
    }
    ASSERT_THAT(fsck(memory).violations, IsEmpty());
    const PoolReport report = report_pool(memory);
    EXPECT_LE(report.tiers[0].held + report.tiers[0].filling, 119u);
    std::size_t blocks = 0;
    for_each_block(memory, [&](const BlockReport&) { ++blocks; });
    EXPECT_EQ(blocks, 135u);
    reap(memory, mortal);
  }
  threads.clear();
  reap(memory, mortal);  // no worker runs any more, so the reaper counts exactly
  for (const WorkerProgress& p : progress) EXPECT_EQ(p.wrong.load(), 0u);
  expect_all_there(memory);
}

}  // namespace
}  // namespace kvhive::testing
