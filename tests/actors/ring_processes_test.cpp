// Eight engines in as many processes over one tiny pool, of one model or of several, each at its
// own pace, with requests of its own; now and then one is killed, and another takes its slot. What
// is checked is what holds whatever the order was: each request gets the oracle's tokens, and no
// block is lost.

#include <gtest/gtest.h>
#include <sched.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <vector>

#include "pool/care/fsck.hpp"
#include "pool/care/reaper.hpp"
#include "tests/actors/random_client.hpp"
#include "tests/support/cache_groups.hpp"
#include "tests/support/child_process.hpp"
#include "tests/support/sanitizers.hpp"
#include "tests/support/shared_value.hpp"

namespace kvhive::testing {
namespace {

constexpr std::uint32_t kProcesses = 8;
constexpr std::uint64_t kStepsEach = kUnderSanitizer ? 2'000 : 30'000;
constexpr int kDeaths = 6;

struct Cache {
  CacheGroups groups;
  std::uint32_t block_tokens = 4;
};
struct Kind {
  const char* name;
  std::vector<Cache> models;  ///< the engines' in turn
  PreemptionMode preemption;
  HashAlgorithm hash_algorithm = HashAlgorithm::xxhash;
};
void PrintTo(const Kind& kind, std::ostream* out) { *out << kind.name; }
const Kind kKinds[] = {
    {"Full", {{groups_of({kFull})}}, PreemptionMode::recompute},
    {"FullSwap", {{groups_of({kFull})}}, PreemptionMode::swap, HashAlgorithm::sha256},
    {"Window", {{groups_of({window(6)})}}, PreemptionMode::recompute},
    {"FullAndWindow", {{groups_of({kFull, window(7)})}}, PreemptionMode::swap},
    {"FullAndChunks", {{groups_of({kFull, chunks(8)})}}, PreemptionMode::recompute},
    {"TwoModelsAlike", {{groups_of({kFull})}, {groups_of({kFull})}}, PreemptionMode::recompute},
    {"ThreeModels",
     {{groups_of({kFull})},
      {groups_of({kFull, window(12)}), 8},
      {groups_of({window(5), chunks(4)}), 2}},
     PreemptionMode::swap}};

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
  Worker(const PoolMemory& memory, const RingConfig& config, std::uint32_t slot, ModelId model,
         std::uint64_t seed, Tally& tally)
      : config_(config),
        slot_(slot),
        model_(model),
        tally_(tally),
        random_(seed),
        ring_(memory, {slot}, config, model) {
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
    for (std::uint32_t i = between(random_, 4, 16); i > 0; --i) {
      clients.push_back(source.next(i, config_.scheduler.max_model_len));
      clients.back().model = model_;
    }
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
  ModelId model_;
  Tally& tally_;
  std::mt19937_64 random_;
  PlainRing ring_;
};

class RingProcesses : public ::testing::TestWithParam<Kind> {
 protected:
  RingProcesses() {
    config_.scheduler.max_num_seqs = config_.block_manager.max_num_seqs = 4;
    config_.scheduler.max_num_batched_tokens = config_.block_manager.max_num_batched_tokens = 24;
    config_.block_manager.preemption = GetParam().preemption;
  }
  static std::size_t models() { return GetParam().models.size(); }
  static ModelId model_of(std::uint32_t slot) {
    return ModelId{static_cast<std::uint8_t>(slot % models())};
  }
  /// As many as 20 for each group of the model that has the most.
  static std::uint32_t device_blocks() {
    std::uint32_t most = 0;
    for (const Cache& cache : GetParam().models) most = std::max(most, 20 * cache.groups.count);
    return most;
  }
  /// A token has 16 bytes at least, as the oracle needs.
  static PoolGeometry geometry() {
    const bool has_one = models() == 1;
    PoolGeometry geometry = small_geometry(device_blocks() + 1, 24, 4, has_one ? 2 : 4);
    geometry.hash_algorithm = GetParam().hash_algorithm;
    geometry.model_count = static_cast<std::uint32_t>(models());
    std::uint32_t first = 0;
    for (std::size_t i = 0; i < models(); ++i) {
      const Cache& cache = GetParam().models[i];
      ModelCache& model = geometry.models[i];
      model = geometry.models[0];
      model.tokens_per_block = cache.block_tokens;
      model.groups = cache.groups;
      model.groups.first = first;
      first += cache.groups.count;
    }
    return geometry;
  }

  ChildProcess start(std::uint32_t slot, std::uint64_t seed) {
    RingConfig config = config_;
    const Cache& cache = GetParam().models[model_of(slot).value];
    config.scheduler.max_model_len = static_cast<std::uint32_t>(cache.groups.longest_sequence(
        device_blocks(), config.scheduler.max_num_batched_tokens, cache.block_tokens, 48));
    config.block_manager.single_flight = seed % 2 == 0;
    config.block_manager.stretch = {1, 1};
    config.scheduler.lookup = {.drafts = seed % 3 == 0 ? 3u : 0, .longest = 2, .shortest = 1};
    config.block_manager.async_scheduling = seed % 3 == 1;
    // A millisecond passes whenever it is looked at: nobody waits long for forks.
    config.block_manager.clock = [now = std::uint64_t{0}]() mutable { return now += 1'000'000; };
    return ChildProcess(
        [&] { Worker(memory_, config, slot, model_of(slot), seed, *tally_).run(); });
  }

  RingConfig config_;
  PoolMemory memory_ = private_pool(geometry());
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
  std::vector<std::uint64_t> hits_of(models());
  for (std::uint32_t slot = 0; slot < kProcesses; ++slot) {
    steps += tally_->steps[slot].load();
    SlotCounters& counted = memory_.control().processes[slot].counters;
    hits += counted["hit_blocks"].load();
    hits_of[model_of(slot).value] += counted["hit_blocks"].load();
    preempted += counted["preemptions_recompute"].load() + counted["preemptions_swap"].load();
  }
  std::printf("%llu steps, %llu requests\n", static_cast<unsigned long long>(steps),
              static_cast<unsigned long long>(tally_->requests.load()));
  RecordProperty("hits", std::to_string(hits));
  RecordProperty("preempted", std::to_string(preempted));
  EXPECT_GE(steps, kProcesses * kStepsEach);
  EXPECT_GT(preempted, 0u);
  for (const std::uint64_t of_model : hits_of) EXPECT_GT(of_model, 0u);
  EXPECT_GT(tally_->requests.load(), 500u / (kUnderSanitizer ? 10 : 1));
}

INSTANTIATE_TEST_SUITE_P(Kinds, RingProcesses, ::testing::ValuesIn(kKinds),
                         [](const auto& kind) { return std::string(kind.param.name); });

}  // namespace
}  // namespace kvhive::testing
