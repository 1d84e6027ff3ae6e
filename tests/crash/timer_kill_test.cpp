// Several processes use one pool; some are killed or stopped at random moments. The parent does not
// wait for a fixed time: it watches counters in shared memory. Only the moment of a kill comes from
// a timer.

#include <gmock/gmock.h>
#include <poll.h>
#include <sched.h>
#include <time.h>

#include <array>
#include <chrono>
#include <functional>
#include <random>
#include <span>
#include <vector>

#include "pool/care/fsck.hpp"
#include "pool/care/reaper.hpp"
#include "tests/crash/settings.hpp"
#include "tests/pool/pool_worker.hpp"
#include "tests/support/child_process.hpp"
#include "tests/support/private_pool.hpp"
#include "tests/support/sanitizers.hpp"
#include "tests/support/shared_value.hpp"

namespace kvhive::testing {
namespace {

using ::testing::IsEmpty;

/// Waits until another process makes the condition true. A minute is a hang.
bool comes_true(const std::function<bool()>& condition) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::minutes(1);
  while (!condition()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    sched_yield();
  }
  return true;
}

/// Spins for a random time, so that a signal falls on any instruction.
void linger(std::mt19937& random) {
  for (auto left = random() % 20'000; left != 0; --left) asm volatile("");
}

/// Lets a timer of the calling process kill it by SIGKILL after `moment`. On a busy machine,
/// another process might not run in time to send the signal.
void die_in(std::chrono::nanoseconds moment) {
  sigevent event{};
  event.sigev_notify = SIGEV_SIGNAL;
  event.sigev_signo = SIGKILL;
  timer_t timer;
  const itimerspec when{{}, {0, moment.count()}};
  if (timer_create(CLOCK_MONOTONIC, &event, &timer) != 0 ||
      timer_settime(timer, 0, &when, nullptr) != 0)
    abort();
}

/// Sleeps for up to 2 ms. The workers go on and are at random instructions afterwards.
void let_timer_expire(std::mt19937& random) {
  const timespec moment{0, long(random() % 2'000'000)};
  ppoll(nullptr, 0, &moment, nullptr);
}

class PoolCrash : public ::testing::Test {
 protected:
  static constexpr std::uint32_t kWorkers = 4, kEverybody = 1u << kWorkers;
  using Fleet = std::array<WorkerProgress, kWorkers>;

  void SetUp() override {
    if (kUnderThreadSanitizer) GTEST_SKIP() << "ThreadSanitizer sees one process only";
  }

  void start(const PoolMemory& memory, std::uint32_t i, WorkerLoad load) {
    const ProcessSlot slot{i};
    children_[i] = ChildProcess([&] {
      PoolWorker worker(memory, slot, std::uint32_t(random_()), load, (*fleet_)[i]);
      occupy(memory, slot, std::uint32_t(getpid()));
      worker.run_until_told();
      worker.release_everything();
    });
    random_.discard(1);
    occupy(memory, slot, std::uint32_t(children_[i].pid()));
  }

  /// Reaps as the steward does, in a process that may be killed meanwhile. Then the next one begins
  /// again.
  void sweep(const PoolMemory& memory, std::span<const std::uint32_t> victims) {
    while (true) {
      const bool must_die = random_() % 4 == 0;
      const std::chrono::nanoseconds moment(1 + random_() % 100'000);
      ChildProcess reaper([&] {
        if (must_die) die_in(moment);
        for (const std::uint32_t victim : victims) reap(memory, ProcessSlot{victim});
      });
      const int status = reaper.wait();
      if (ended_well(status)) return;
      ASSERT_TRUE(must_die && WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) << status;
      ++reapers_killed_;
    }
  }

  void stop_all() {
    for (std::uint32_t i = 0; i < kWorkers; ++i) (*fleet_)[i].must_stop.store(true);
    for (ChildProcess& child : children_) EXPECT_TRUE(ended_well(child.wait()));
  }

  std::uint64_t requests(std::uint32_t i) const { return (*fleet_)[i].requests.load(); }
  /// Requests of the worker, served and refused.
  std::uint64_t attempts(std::uint32_t i) const {
    return requests(i) + (*fleet_)[i].shortages.load();
  }
  std::uint64_t sum(std::atomic<std::uint64_t> WorkerProgress::*counter) const {
    std::uint64_t total = 0;
    for (const WorkerProgress& progress : *fleet_) total += (progress.*counter).load();
    return total;
  }

  void expect_all_there(const PoolMemory& memory) const {
    EXPECT_THAT(fsck(memory, Moment::quiescent).violations, IsEmpty());
    const ProcessSlot slot{kMaxProcesses - 1};
    occupy(memory, slot);
    BlockPool pool(memory, slot);
    for (const Tier tier : {Tier::device, Tier::host}) {
      EXPECT_EQ(pool.available(tier), pool.capacity(tier)) << to_string(tier);
      const auto all = pool.allocate(tier, pool.capacity(tier));
      ASSERT_TRUE(all.has_value()) << all.error().text;
      pool.release(*all);
    }
  }

  std::mt19937 random_{20250101};
  SharedValue<Fleet> fleet_;
  std::array<ChildProcess, kWorkers> children_;
  int reapers_killed_ = 0;  ///< before they had finished
};

TEST_F(PoolCrash, NothingIsLostWhenWorkersAreKilledAtRandomMoments) {
  random_.seed(chosen_seed());
  const WorkerLoad load;
  PoolGeometry geometry = small_geometry(1 + load.most_blocks() * 2, 24);
  geometry.models[0].groups.count = 2;
  geometry.models[0].groups.group[1] = {CacheKind::sliding_window, 6};
  geometry.limits[0].min = 4;  // so that blocks are counted
  geometry.eviction_policy = EvictionPolicy::second_chance;
  geometry.life_stride = 2;
  const PoolMemory memory = private_pool(geometry);
  for (std::uint32_t i = 0; i < kWorkers; ++i) start(memory, i, load);

  const int least = kUnderSanitizer ? 200 : 2'000;
  const auto start_time = std::chrono::steady_clock::now();
  const auto minutes = std::chrono::duration<double, std::ratio<60>>(chaos_minutes());
  int kills = 0;
  for (int round = 0; kills < least || std::chrono::steady_clock::now() < start_time + minutes;
       ++round) {
    // One or more workers at once.
    std::vector<std::uint32_t> victims;
    for (std::uint32_t i = 0, chosen = 1 + random_() % (kEverybody - 1); i < kWorkers; ++i)
      if ((chosen >> i & 1) != 0) victims.push_back(i);
    // A worker that was just started may die before its first request; every 50th round waits for
    // one.
    if (round % 50 == 0) {
      const std::uint64_t goal = attempts(victims[0]) + 1 + random_() % 50;
      ASSERT_TRUE(comes_true([&] { return attempts(victims[0]) >= goal; })) << "worker hangs";
    }
    let_timer_expire(random_);
    for (const std::uint32_t victim : victims) children_[victim].signal(SIGKILL);
    for (const std::uint32_t victim : victims) {
      ASSERT_EQ(WTERMSIG(children_[victim].wait()), SIGKILL) << "worker ended by itself";
      ++kills;
    }
    sweep(memory, victims);
    if (round % 10 == 0) {  // the other workers go on meanwhile
      ASSERT_THAT(fsck(memory).violations, IsEmpty()) << "after kill " << kills;
      ASSERT_EQ(sum(&WorkerProgress::wrong), 0u) << "after kill " << kills;
    }
    for (const std::uint32_t victim : victims) start(memory, victim, load);
  }
  std::vector<std::uint32_t> all;
  for (std::uint32_t i = 0; i < kWorkers; ++i) {
    ASSERT_TRUE(children_[i].kill_and_wait());
    all.push_back(i);
  }
  sweep(memory, all);

  std::printf("%d workers and %d reapers killed, %llu requests, %llu blocks verified, %llu wrong\n",
              kills, reapers_killed_,
              static_cast<unsigned long long>(sum(&WorkerProgress::requests)),
              static_cast<unsigned long long>(sum(&WorkerProgress::verified)),
              static_cast<unsigned long long>(sum(&WorkerProgress::wrong)));
  EXPECT_EQ(sum(&WorkerProgress::wrong), 0u);
  EXPECT_GT(sum(&WorkerProgress::verified), 1000u);
  EXPECT_GT(sum(&WorkerProgress::shortages), 10u) << "the pool was never short of blocks";
  EXPECT_GT(reapers_killed_, 10);
  EXPECT_EQ(fsck(memory).miscounted, 0u);
  expect_all_there(memory);
}

TEST_F(PoolCrash, ProcessesThatWorkAtOnceCountExactly) {
  const WorkerLoad load;
  PoolGeometry geometry =
      small_geometry(1 + (load.most_blocks() + WorkerLoad::kInWindow) * kWorkers, 24);
  geometry.models[0].groups.count = 2;
  geometry.models[0].groups.group[1] = {CacheKind::sliding_window, 6};
  const PoolMemory memory = private_pool(geometry);
  for (std::uint32_t i = 0; i < kWorkers; ++i) start(memory, i, load);
  const std::uint64_t goal = kUnderSanitizer ? 20'000 : 200'000;
  ASSERT_TRUE(comes_true([&] { return sum(&WorkerProgress::requests) >= goal; }));
  stop_all();
  EXPECT_EQ(sum(&WorkerProgress::wrong), 0u);
  EXPECT_EQ(sum(&WorkerProgress::shortages), 0u) << "there were enough blocks for all workers";
  expect_all_there(memory);
}

/// Idle blocks of the tier whose hints the ring has lost.
std::size_t lost_hints(const PoolMemory& memory, Tier tier) {
  const auto& layout = memory.tier_layout(tier);
  const std::uint64_t head = memory.control().tiers[std::size_t(tier)].lanes[0].head.load();
  std::size_t lost = 0;
  for (std::uint32_t id = layout.first_block; id < layout.first_block + layout.blocks; ++id) {
    const BlockDescriptor& d = memory.descriptors()[id];
    const std::uint64_t stamp = d.stamp.load();
    if (BlockWord{d.word.load()}.is_idle())
      lost += stamp < head || memory.ring(tier)[stamp % layout.ring_slots].load() != id;
  }
  return lost;
}

TEST_F(PoolCrash, NoHintIsLostUnlessTheRingIsOverwritten) {
  const WorkerLoad load{.sequences = 6, .blocks = 6, .vocabulary = 6};
  int seen = 0;
  for (int attempt = 0; attempt < 40 && seen < 2; ++attempt) {
    const PoolMemory memory = private_pool(small_geometry(600, 24));
    for (WorkerProgress& progress : *fleet_) {
      progress.requests.store(0);
      progress.must_stop.store(false);
    }
    for (std::uint32_t i = 0; i < kWorkers; ++i) start(memory, i, load);
    ASSERT_TRUE(comes_true([&] { return sum(&WorkerProgress::requests) >= 30'000; }));
    stop_all();
    // If the kernel did not run a process for long, the ring was overwritten, and the epoch moved.
    const TierControl& order = memory.control().tiers[0];
    if (order.epoch.load() + order.lanes[0].epoch.load() != 0) continue;
    ++seen;
    ASSERT_EQ(lost_hints(memory, Tier::device), 0u);
  }
  if (seen == 0) GTEST_SKIP() << "the machine is too busy: the ring went round every time";
}

TEST_F(PoolCrash, AStoppedProcessStopsNoOther) {
  const WorkerLoad load;
  const PoolMemory memory = private_pool(small_geometry(1 + load.most_blocks() * kWorkers, 24));
  for (std::uint32_t i = 0; i < kWorkers; ++i) start(memory, i, load);
  for (int round = 0; round < 20; ++round) {
    const std::uint32_t victim = random_() % kWorkers;
    const std::uint64_t goal = requests(victim) + 1 + random_() % 50;
    ASSERT_TRUE(comes_true([&] { return requests(victim) >= goal; }));
    linger(random_);
    children_[victim].signal(SIGSTOP);
    ASSERT_EQ(waitpid(children_[victim].pid(), nullptr, WUNTRACED), children_[victim].pid());
    const std::uint64_t stopped_at = requests(victim);
    for (std::uint32_t other = 0; other < kWorkers; ++other) {
      if (other == victim) continue;
      const std::uint64_t further = requests(other) + 500;
      EXPECT_TRUE(comes_true([&] { return requests(other) >= further; })) << "worker " << other;
    }
    EXPECT_EQ(requests(victim), stopped_at);
    children_[victim].signal(SIGCONT);
  }
  stop_all();
  EXPECT_EQ(sum(&WorkerProgress::wrong), 0u);
  expect_all_there(memory);
}

TEST_F(PoolCrash, PublishedBlocksOutliveTheirPublisher) {
  const PoolMemory memory = private_pool(small_geometry(11));
  occupy(memory, ProcessSlot{0});
  ChildProcess child([&] {
    BlockPool pool(memory, ProcessSlot{0});
    (void)admit(pool, Prompt(pool, counting(0, 14)));  // three full blocks and half of one
    raise(SIGKILL);
  });
  child.wait();
  const ReapReport report = reap(memory, ProcessSlot{0});
  EXPECT_EQ(report.released, 3u);
  EXPECT_EQ(report.freed, 1u);

  BlockPool pool(memory, ProcessSlot{1});
  EXPECT_EQ(numbers(match_all(pool, Prompt(pool, counting(0, 14))).blocks),
            (std::vector<std::uint32_t>{1, 2, 3}));
}

TEST_F(PoolCrash, AReapInterruptedAnywhereCanBeRunAgain) {
  constexpr std::uint32_t kBlocks = 4096;
  const PoolMemory memory = private_pool(small_geometry(kBlocks, 16, 4, 1));
  int interrupted = 0;
  for (int round = 0; interrupted < 20 && round < 2000; ++round) {
    const ProcessSlot slot{std::uint32_t(round) % 4};
    occupy(memory, slot);
    ChildProcess engine([&] {
      BlockPool pool(memory, slot);
      auto request = admit(pool, Prompt(pool, counting(round, 4 * 900 + 2)));
      auto more = pool.allocate(Tier::device, 1000);
      raise(request && more ? SIGKILL : SIGABRT);
    });
    ASSERT_EQ(WTERMSIG(engine.wait()), SIGKILL);

    const std::chrono::nanoseconds moment(1 + random_() % 400'000);
    ChildProcess reaper([&] {
      die_in(moment);
      reap(memory, slot);
    });
    interrupted += !ended_well(reaper.wait());

    reap(memory, slot);
    ASSERT_THAT(fsck(memory).violations, IsEmpty());
    ASSERT_EQ(BlockPool(memory, ProcessSlot{30}).available(Tier::device), kBlocks - 1);
  }
  EXPECT_GE(interrupted, 20);
  expect_all_there(memory);
}

}  // namespace
}  // namespace kvhive::testing
