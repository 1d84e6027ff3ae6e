// Eight engines in as many processes over one tiny pool, each at its own pace, with requests of its
// own; now and then one is killed, and another takes its slot. What is checked is what holds
// whatever the order was: each request gets the oracle's tokens, and no block is lost.

#include <gtest/gtest.h>
#include <sched.h>

#include <cstdio>
#include <cstdlib>
#include <random>

#include "pool/care/fsck.hpp"
#include "pool/care/reaper.hpp"
#include "tests/actors/random_client.hpp"
#include "tests/support/cache_groups.hpp"
#include "tests/support/child_process.hpp"
#include "tests/support/sanitizers.hpp"
#include "tests/support/shared_value.hpp"

namespace kvhive::testing {
namespace {

constexpr std::uint32_t kProcesses = 8, kBlockTokens = 4;
constexpr std::uint64_t kStepsEach = kUnderSanitizer ? 2'000 : 30'000;
constexpr int kDeaths = 6;

struct Kind {
  const char* name;
  CacheGroups groups;
  PreemptionMode preemption;
  HashAlgorithm hash_algorithm = HashAlgorithm::xxhash;
};
void PrintTo(const Kind& kind, std::ostream* out) { *out << kind.name; }
const Kind kKinds[] = {
    {"Full", groups_of({kFull}), PreemptionMode::recompute},
    {"FullSwap", groups_of({kFull}), PreemptionMode::swap, HashAlgorithm::sha256},
    {"Window", groups_of({window(6)}), PreemptionMode::recompute},
    {"FullAndWindow", groups_of({kFull, window(7)}), PreemptionMode::swap},
    {"FullAndChunks", groups_of({kFull, chunks(8)}), PreemptionMode::recompute}};

/// What the processes and the test say to each other.
struct Tally {
  std::atomic<std::uint64_t> steps[kProcesses];
  std::atomic<std::uint64_t> requests;
  std::atomic<bool> has_failed, must_end;

  bool has_made(std::uint32_t slot, std::uint64_t wanted) const {
    return has_failed || steps[slot] >= wanted;
  }
};

/// An engine and its clients, in a process of their own.
class Worker {
 public:
  Worker(const PoolMemory& memory, const RingConfig& config, std::uint32_t slot, std::uint64_t seed,
         Tally& tally)
      : config_(config), slot_(slot), tally_(tally), random_(seed), ring_(memory, {slot}, config) {
    if (seed % 4 == 0) ring_.copy_policy().set(8, 1);  // copies seem too expensive at first
  }

  void run() {
    std::mt19937_64 same(1);  // so that all share beginnings
    RandomClients prefixes(same);
    while (!tally_.must_end) {
      same.seed(random_());
      serve_some(prefixes);
    }
  }

 private:
  void serve_some(RandomClients& source) {
    std::vector<RandomClient> clients;
    for (std::uint32_t i = between(random_, 4, 16); i > 0; --i)
      clients.push_back(source.next(i, config_.scheduler.max_model_len));
    std::size_t submitted = 0;
    while (submitted < clients.size() || !ring_.is_quiet()) {
      if (submitted < clients.size() && between(random_, 0, 3) == 0) {
        ring_.scheduler().submit(clients[submitted++].submission());
        ring_.scheduler().flush();
      }
      if (submitted > 0 && between(random_, 0, 60) == 0)
        abort(clients[between(random_, 0, submitted - 1)]);
      const auto worked = ring_.advance();
      KV_CHECK(worked.has_value(), worked.error().text);
      if (ring_.scheduler().is_starved()) sched_yield();  // others hold what it needs
      tally_.steps[slot_].fetch_add(1, std::memory_order_relaxed);
    }
    for (const RandomClient& client : clients)
      if (const auto right = client.got_what_the_oracle_computes(config_.scheduler.max_model_len);
          !right) {
        std::fprintf(stderr, "process %u: %s\n", slot_, right.message());
        tally_.has_failed = true;
        std::_Exit(1);
      }
    tally_.requests += clients.size();
  }

  void abort(RandomClient& client) {
    client.is_aborted = true;
    ring_.scheduler().abort({{client.key}, {}});
  }

  RingConfig config_;
  std::uint32_t slot_;
  Tally& tally_;
  std::mt19937_64 random_;
  PlainRing ring_;
};

class RingProcesses : public ::testing::TestWithParam<Kind> {
 protected:
  RingProcesses() {
    const CacheGroups& groups = GetParam().groups;
    config_.scheduler.max_num_seqs = config_.block_manager.max_num_seqs = 4;
    config_.scheduler.max_num_batched_tokens = config_.block_manager.max_num_batched_tokens = 24;
    config_.scheduler.max_model_len = static_cast<std::uint32_t>(groups.longest_sequence(
        device_blocks(), config_.scheduler.max_num_batched_tokens, kBlockTokens, 48));
    config_.block_manager.preemption = GetParam().preemption;
  }
  static std::uint32_t device_blocks() { return 20 * GetParam().groups.count; }

  ChildProcess start(std::uint32_t slot, std::uint64_t seed) {
    RingConfig config = config_;
    config.block_manager.single_flight = seed % 2 == 0;
    config.block_manager.stretch = {1, 1};
    config.scheduler.lookup = {.drafts = seed % 3 == 0 ? 3u : 0, .longest = 2, .shortest = 1};
    config.block_manager.async_scheduling = seed % 3 == 1;
    // A millisecond passes whenever it is looked at: nobody waits long for forks.
    config.block_manager.clock = [now = std::uint64_t{0}]() mutable { return now += 1'000'000; };
    return ChildProcess([&] { Worker(memory_, config, slot, seed, *tally_).run(); });
  }

  RingConfig config_;
  PoolMemory memory_ =
      oracle_pool(device_blocks() + 1, 24, GetParam().groups, GetParam().hash_algorithm);
  SharedValue<Tally> tally_;
};

TEST_P(RingProcesses, AtTheirOwnPaceGetTheOraclesTokensAndLoseNoBlock) {
  if (kUnderThreadSanitizer) GTEST_SKIP() << "ThreadSanitizer sees one process only";
  std::mt19937_64 random(7);
  std::uint64_t seed = 100;
  std::vector<ChildProcess> processes;
  for (std::uint32_t slot = 0; slot < kProcesses; ++slot) processes.push_back(start(slot, seed++));
  for (int death = 1; death <= kDeaths; ++death) {
    const std::uint32_t slot = between(random, 0, kProcesses - 1);
    // While it works, and each a part of its way further.
    while (!tally_->has_made(slot, kStepsEach * std::uint64_t(death) / kDeaths)) sched_yield();
    ASSERT_TRUE(processes[slot].kill_and_wait());
    reap(memory_, ProcessSlot{slot});
    processes[slot] = start(slot, seed++);
  }
  for (std::uint32_t slot = 0; slot < kProcesses; ++slot)
    while (!tally_->has_made(slot, kStepsEach)) sched_yield();
  tally_->must_end = true;
  for (ChildProcess& process : processes) EXPECT_EQ(process.wait(), 0);

  for (std::uint32_t slot = 0; slot < kProcesses; ++slot) reap(memory_, ProcessSlot{slot});
  const FsckReport report = fsck(memory_);
  EXPECT_TRUE(report.violations.empty()) << report.violations.front();
  BlockPool pool(memory_, ProcessSlot{0});
  for (const Tier tier : {Tier::device, Tier::host})
    EXPECT_EQ(pool.available(tier), pool.capacity(tier)) << to_string(tier);
  std::uint64_t steps = 0, hits = 0, preempted = 0;
  for (std::uint32_t slot = 0; slot < kProcesses; ++slot) {
    steps += tally_->steps[slot].load();
    SlotCounters& counted = memory_.control().processes[slot].counters;
    hits += counted["hit_blocks"].load();
    preempted += counted["preemptions_recompute"].load() + counted["preemptions_swap"].load();
  }
  std::printf("%llu steps, %llu requests\n", static_cast<unsigned long long>(steps),
              static_cast<unsigned long long>(tally_->requests.load()));
  RecordProperty("hits", std::to_string(hits));
  RecordProperty("preempted", std::to_string(preempted));
  EXPECT_GE(steps, kProcesses * kStepsEach);
  EXPECT_GT(tally_->requests.load(), 500u / (kUnderSanitizer ? 10 : 1));
}

INSTANTIATE_TEST_SUITE_P(Kinds, RingProcesses, ::testing::ValuesIn(kKinds),
                         [](const auto& kind) { return std::string(kind.param.name); });

}  // namespace
}  // namespace kvhive::testing
