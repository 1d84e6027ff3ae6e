// Measures whether a stopped process (SIGSTOP) slows down the others: matches while the steward is
// stopped in the middle of a sweep, and matches and allocations while an engine is stopped, at
// random moments.
//
// Operations are timed alternately by elapsed time and by the CPU time of their thread: with more
// processes than cores, elapsed time includes waiting for a core.

#include <time.h>

#include <cstdio>
#include <string>
#include <thread>

#include "base/stop_watch.hpp"
#include "pool/care/reaper.hpp"
#include "tools/bench/forked.hpp"
#include "tools/bench/latency.hpp"
#include "tools/bench/shared_pool.hpp"

namespace kvhive::bench {
namespace {

constexpr std::uint32_t kBlocks = 65'536;
constexpr std::size_t kBlocksPerPrompt = 64;
constexpr std::size_t kMostWorkers = 4;
constexpr ProcessSlot kSteward{0}, kNobody{30};
constexpr std::uint32_t kFirstWorker = 1;

enum class Phase : std::uint32_t { other, undisturbed, stopped, end };

struct Times {
  Latencies wall, processor;
  void add(const Times& other) {
    wall.add(other.wall);
    processor.add(other.processor);
  }
};

struct Stage {
  std::atomic<Phase> phase{Phase::other};
  struct Worker {
    std::array<Times, 3> matches, stores;  ///< by phase
  };
  std::array<Worker, kMostWorkers> workers;
};

/// A process that repeatedly matches a prompt of 64 blocks, stores it if it has been evicted, and
/// releases it.
class Worker {
 public:
  Worker(const PoolMemory& memory, std::uint32_t number, Stage& stage)
      : pool_(memory, ProcessSlot{kFirstWorker + number}),
        stage_(stage),
        mine_(stage.workers[number]) {
    sign_in(memory, ProcessSlot{kFirstWorker + number}, number);
  }

  void run(const std::vector<Prompt>& prompts, std::uint32_t seed) {
    std::mt19937 random(seed);
    while (stage_.phase.load(std::memory_order_relaxed) != Phase::end) {
      is_by_wall_ = !is_by_wall_;
      serve(prompts[random() % prompts.size()]);
    }
  }

 private:
  void serve(const Prompt& prompt) {
    PrefixHit hit;
    const auto find = [&] { hit = prompt.match(pool_, kBlocksPerPrompt); };
    const auto complete = [&] {
      const std::size_t found = hit.blocks.size();
      const auto fresh = pool_.allocate(Tier::device, kBlocksPerPrompt - found);
      if (!fresh) return;
      pool_.publish(hit.end, *fresh, std::span(prompt.chain).subspan(found),
                    std::span(prompt.tokens).subspan(found * kTokensPerBlock));
      hit.blocks.insert(hit.blocks.end(), fresh->begin(), fresh->end());
    };
    timed(find, mine_.matches, [&] { return hit.blocks.size() == kBlocksPerPrompt; });
    if (hit.blocks.size() < kBlocksPerPrompt) timed(complete, mine_.stores, [] { return true; });
    pool_.release(hit.blocks);
  }

  template <class Operation, class Counts>
  void timed(Operation&& operation, std::array<Times, 3>& by_phase, Counts&& counts) {
    const Phase before = stage_.phase.load(std::memory_order_relaxed);
    std::uint64_t ns = 0;
    if (is_by_wall_) {
      const auto start = Clock::now();
      operation();
      ns = nanoseconds_since(start);
    } else {
      const auto start = thread_cpu_time();
      operation();
      ns = static_cast<std::uint64_t>((thread_cpu_time() - start).count());
    }
    if (before != stage_.phase.load(std::memory_order_relaxed) || before == Phase::end || !counts())
      return;
    Times& times = by_phase[std::size_t(before)];
    (is_by_wall_ ? times.wall : times.processor).add(ns);
  }

  BlockPool pool_;
  Stage& stage_;
  Stage::Worker& mine_;
  bool is_by_wall_ = false;
};

void print(const char* name, const Latencies& times, const Latencies& undisturbed) {
  const double p99 = times.quantile_us(0.99);
  std::printf("    %-34s %8llu: p50 %6.1f us, p99 %6.1f, p99.9 %7.1f; p99 %.2f of undisturbed\n",
              name, static_cast<unsigned long long>(times.count()), times.quantile_us(0.5), p99,
              times.quantile_us(0.999), p99 / undisturbed.quantile_us(0.99));
}

void print(const char* what, const Stage& stage, std::size_t first, std::size_t workers,
           std::array<Times, 3> Stage::Worker::*of) {
  Shared<std::array<Times, 3>> sum;
  for (std::size_t w = first; w < workers; ++w)
    for (std::size_t phase = 0; phase < 3; ++phase)
      (*sum)[phase].add((stage.workers[w].*of)[phase]);
  const Times& undisturbed = (*sum)[std::size_t(Phase::undisturbed)];
  const Times& stopped = (*sum)[std::size_t(Phase::stopped)];
  std::printf("  %s\n", what);
  print("undisturbed, on the wall", undisturbed.wall, undisturbed.wall);
  print("stopped, on the wall", stopped.wall, undisturbed.wall);
  print("undisturbed, processor time", undisturbed.processor, undisturbed.processor);
  print("stopped, processor time", stopped.processor, undisturbed.processor);
}

class Fleet {
 public:
  Fleet() {
    const PoolMemory memory = shared_.attach();
    sign_in(memory, kSteward, 0);
    BlockPool pool(memory, kSteward);
    // Some more prompts than the pool has room for, so that prompts are evicted and stored all the
    // time.
    prompts_ = make_prompts(pool.hasher(), kBlocks / kBlocksPerPrompt * 17 / 16, kBlocksPerPrompt);
    for (const Prompt& prompt : prompts_) pool.release(store(pool, prompt));
  }

  Forked worker(std::uint32_t number, Stage& stage) const {
    return Forked([&] {
      const PoolMemory memory = shared_.attach();
      Worker(memory, number, stage).run(prompts_, 100 + number);
    });
  }

  Forked steward() const {
    return Forked([&] {
      const PoolMemory memory = shared_.attach();
      while (true) (void)reap(memory, kNobody);
    });
  }

 private:
  SharedPool shared_{kBlocks};
  std::vector<Prompt> prompts_;
};

/// Repeatedly lets all processes work, and then stops `victim` for the same time, at random
/// moments.
void stop_and_go(const Forked& victim, Stage& stage, int stops) {
  std::mt19937 random(5);
  const auto rest = [&] {
    std::this_thread::sleep_for(std::chrono::microseconds(5'000 + random() % 1'000));
  };
  for (int i = 0; i < stops; ++i) {
    stage.phase.store(Phase::undisturbed);
    rest();
    stage.phase.store(Phase::other);
    victim.signal(SIGSTOP);
    KV_CHECK(waitpid(victim.pid(), nullptr, WUNTRACED) == victim.pid());
    stage.phase.store(Phase::stopped);
    rest();
    stage.phase.store(Phase::other);
    victim.signal(SIGCONT);
  }
  stage.phase.store(Phase::end);
}

void stop_the_steward(const Fleet& fleet, std::uint32_t engines, int stops) {
  Shared<Stage> stage;
  std::vector<Forked> workers;
  for (std::uint32_t i = 0; i < engines; ++i) workers.push_back(fleet.worker(i, *stage));
  const Forked steward = fleet.steward();
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  stop_and_go(steward, *stage, stops);
  for (Forked& worker : workers) KV_CHECK(worker.collect());
  std::printf("the steward, sweeping all the time, stopped %d times; %u processes at it\n", stops,
              engines);
  print("match of 64 blocks, with pin", *stage, 0, engines, &Stage::Worker::matches);
}

void stop_an_engine(const Fleet& fleet, std::uint32_t engines, int stops) {
  Shared<Stage> stage;
  std::vector<Forked> workers;
  for (std::uint32_t i = 0; i < engines; ++i) workers.push_back(fleet.worker(i, *stage));
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  stop_and_go(workers[0], *stage, stops);
  for (Forked& worker : workers) KV_CHECK(worker.collect());
  std::printf("one of %u engines stopped %d times; the others\n", engines, stops);
  print("match of 64 blocks, with pin", *stage, 1, engines, &Stage::Worker::matches);
  print("allocate and publish what was missing", *stage, 1, engines, &Stage::Worker::stores);
}

}  // namespace
}  // namespace kvhive::bench

int main(int argc, char** argv) {
  using namespace kvhive::bench;
  setvbuf(stdout, nullptr, _IOLBF, 0);  // forked children must not print it again
  const bool is_brief = argc > 1 && std::string(argv[1]) == "--brief";
  const int stops = is_brief ? 3 : 200;
  const Fleet fleet;
  stop_the_steward(fleet, 4, stops);
  if (!is_brief) stop_the_steward(fleet, 1, stops);
  stop_an_engine(fleet, 2, stops);
  if (!is_brief) stop_an_engine(fleet, 4, stops);
}
