// Measures what the death of a process costs: the time from the moment when its pidfd is readable
// to the end of the sweep, the time that a new steward takes to attach and sweep what its
// predecessor left, and how both slow down the matches of another process. One process matches all
// the time. Other processes die one after the other, each holding a part of the pool and filling
// some blocks.

#include <poll.h>
#include <time.h>

#include <cstdio>
#include <string>
#include <thread>

#include "base/stop_watch.hpp"
#include "ipc/pidfd.hpp"
#include "pool/care/reaper.hpp"
#include "tools/bench/forked.hpp"
#include "tools/bench/latency.hpp"
#include "tools/bench/paired.hpp"
#include "tools/bench/shared_pool.hpp"

namespace kvhive::bench {
namespace {

constexpr std::size_t kBlocksPerPrompt = 256;
constexpr std::size_t kBlocksMatched = 64;
constexpr std::size_t kBlocksFilling = 64;
constexpr ProcessSlot kSteward{0}, kMatcher{1}, kVictim{2};
constexpr auto kQuiet = std::chrono::milliseconds(10);

/// The phase of the measurement in which a match is counted.
enum class Phase : std::uint32_t { other, undisturbed, sweep, adoption, end };

struct Stage {
  std::atomic<Phase> phase{Phase::other};
  std::atomic<bool> victim_holds_its_share{false};
  std::atomic<std::uint64_t> adoption_ns{0};
  std::array<Latencies, 4> matches;  ///< by phase
};

void match_all_the_time(const SharedPool& shared, const std::vector<Prompt>& prompts,
                        Stage& stage) {
  const PoolMemory memory = shared.attach();
  sign_in(memory, kMatcher, 1);
  BlockPool pool(memory, kMatcher);
  std::mt19937 random(7);
  while (true) {
    const Prompt& prompt = prompts[random() % prompts.size()];
    const Phase before = stage.phase.load(std::memory_order_relaxed);
    const auto start = Clock::now();
    const PrefixHit hit = prompt.match(pool, kBlocksMatched);
    const std::uint64_t ns = nanoseconds_since(start);
    const Phase after = stage.phase.load(std::memory_order_relaxed);
    pool.release(hit.blocks);
    if (after == Phase::end) return;
    // A match during which a sweep began or ended counts as a match during the sweep.
    const Phase seen = before == Phase::undisturbed ? after : before;
    stage.matches[std::size_t(seen)].add(ns);
  }
}

[[noreturn]] void hold_a_share(const SharedPool& shared, const std::vector<Prompt>& prompts,
                               std::size_t share, Stage& stage) {
  const PoolMemory memory = shared.attach();
  sign_in(memory, kVictim, 2);
  BlockPool pool(memory, kVictim);
  for (std::size_t i = 0; i < share; ++i) (void)prompts[i].match(pool, kBlocksPerPrompt);
  KV_CHECK(pool.allocate(Tier::device, kBlocksFilling).has_value());
  stage.victim_holds_its_share.store(true);
  while (true) pause();
}

/// Starts a victim, and kills it after the matching process has worked undisturbed for a while.
/// Returns when the victim's pidfd is readable.
void die_holding_a_share(const SharedPool& shared, const std::vector<Prompt>& prompts,
                         std::size_t share, Stage& stage) {
  stage.phase.store(Phase::other);
  stage.victim_holds_its_share.store(false);
  Forked victim([&] { hold_a_share(shared, prompts, share, stage); });
  while (!stage.victim_holds_its_share.load()) std::this_thread::sleep_for(kQuiet / 10);
  stage.phase.store(Phase::undisturbed);
  std::this_thread::sleep_for(kQuiet);
  stage.phase.store(Phase::other);
  const UniqueFd pidfd = *pidfd_of(victim.pid());
  kill_by_pidfd(pidfd);
  pollfd dead{pidfd.get(), POLLIN, 0};
  KV_CHECK(poll(&dead, 1, -1) == 1);
}

void print_times(const char* name, std::vector<double> ms) {
  std::sort(ms.begin(), ms.end());
  std::printf("  %-26s p50 %7.2f ms, p99 %7.2f ms, most %7.2f ms\n", name, ms[ms.size() / 2],
              ms[ms.size() * 99 / 100], ms.back());
}

void print_matches(const char* name, const Latencies& matches, const Latencies& undisturbed) {
  std::printf("  matches %-22s %8llu: p50 %6.1f us, p99 %6.1f us, %.2f of undisturbed\n", name,
              static_cast<unsigned long long>(matches.count()), matches.quantile_us(0.5),
              matches.quantile_us(0.99), matches.quantile_us(0.99) / undisturbed.quantile_us(0.99));
}

/// \param share  the victim holds 1 / share of the pool's prompts
void measure(std::uint32_t blocks, std::size_t share, int deaths) {
  const SharedPool shared(blocks);
  const PoolMemory memory = shared.attach();
  std::vector<Prompt> prompts;
  {
    sign_in(memory, kSteward, 0);
    BlockPool pool(memory, kSteward);
    prompts = make_prompts(pool.hasher(), (blocks - 2 * kBlocksFilling) / kBlocksPerPrompt,
                           kBlocksPerPrompt);
    for (const Prompt& prompt : prompts) pool.release(store(pool, prompt));
  }
  const std::size_t held = prompts.size() / share;
  Shared<Stage> stage;
  Forked matcher([&] { match_all_the_time(shared, prompts, *stage); });

  std::vector<double> sweeps, sweeps_cpu, adoptions;
  for (int i = 0; i < deaths; ++i) {
    die_holding_a_share(shared, prompts, held, *stage);
    stage->phase.store(Phase::sweep);
    const auto cpu = thread_cpu_time();
    sweeps.push_back(1e3 * seconds_of([&] {
                       const ReapReport report = reap(memory, kVictim);
                       KV_CHECK(report.released == held * kBlocksPerPrompt &&
                                    report.freed == kBlocksFilling,
                                report.released, report.freed);
                     }));
    sweeps_cpu.push_back(static_cast<double>((thread_cpu_time() - cpu).count()) / 1e6);

    die_holding_a_share(shared, prompts, held, *stage);
    stage->phase.store(Phase::adoption);
    Forked steward([&] {
      const auto start = Clock::now();
      (void)reap(shared.attach(), kVictim);
      stage->adoption_ns.store(nanoseconds_since(start));
    });
    KV_CHECK(steward.collect());
    stage->phase.store(Phase::other);
    adoptions.push_back(static_cast<double>(stage->adoption_ns.load()) / 1e6);
  }
  stage->phase.store(Phase::end);
  KV_CHECK(matcher.collect());

  std::printf("%u blocks, the dead held %zu of them and filled %zu; %d deaths each\n", blocks,
              held * kBlocksPerPrompt, kBlocksFilling, deaths);
  print_times("sweep", sweeps);
  print_times("its processor time", sweeps_cpu);
  print_times("a fresh steward's, attach", adoptions);
  const auto& matches = stage->matches;
  const Latencies& undisturbed = matches[std::size_t(Phase::undisturbed)];
  print_matches("undisturbed", undisturbed, undisturbed);
  print_matches("during a sweep", matches[std::size_t(Phase::sweep)], undisturbed);
  print_matches("during an adoption", matches[std::size_t(Phase::adoption)], undisturbed);
  std::printf("\n");
}

}  // namespace
}  // namespace kvhive::bench

int main(int argc, char** argv) {
  setvbuf(stdout, nullptr, _IOLBF, 0);  // forked children must not print it again
  const bool is_brief = argc > 1 && std::string(argv[1]) == "--brief";
  kvhive::bench::measure(65'536, 4, is_brief ? 3 : 200);
  if (is_brief) return 0;
  kvhive::bench::measure(65'536, 1, 50);
  kvhive::bench::measure(1'048'576, 4, 100);
  kvhive::bench::measure(1'048'576, 1, 10);
}
