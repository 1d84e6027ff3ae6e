// Whether a prompt that another domain has cached can be told, by the clock, from one that nobody
// has. Two thousand probes a round, half of each kind, in random order, each prompt probed once: a
// Kolmogorov-Smirnov test of the two samples must not see a difference (p > 0.01). The control does
// the same within one domain, where it must.
//
// `make timing`. Not one of ctest's tests: a clock has the last word here.

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <random>

#include "config/check.hpp"
#include "tests/crash/settings.hpp"
#include "tests/support/private_pool.hpp"
#include "tests/support/request.hpp"
#include "tests/timing/kolmogorov_smirnov.hpp"

namespace kvhive::testing {
namespace {

constexpr std::size_t kOfEachKind = 1000;
constexpr std::size_t kBlocksPerPrompt = 8;
constexpr int kRounds = 7;
/// By chance one round in a hundred is below; two of seven, one run in five hundred.
constexpr int kMayBeBelow = 1;
constexpr double kLevel = 0.01;

struct Probe {
  Prompt prompt;
  bool is_cached;
};

double nanoseconds_of_match(BlockPool& pool, const Prompt& prompt) {
  using Clock = std::chrono::steady_clock;
  const auto start = Clock::now();
  const PrefixHit hit = match_all(pool, prompt);
  const auto end = Clock::now();
  pool.cancel(hit);
  return std::chrono::duration<double, std::nano>(end - start).count();
}

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2),
                   values.end());
  return values[values.size() / 2];
}

/// One pool, one secret: what the other caches, and then our probes.
KolmogorovSmirnov round(std::mt19937& random, DomainId others, DomainId ours) {
  const PoolMemory memory = private_pool(small_geometry(32'768, 0, 16, 2));
  BlockPool victim(memory, ProcessSlot{0}), prober(memory, ProcessSlot{1});
  for (const ProcessSlot slot : {ProcessSlot{0}, ProcessSlot{1}}) occupy(memory, slot);

  std::vector<std::vector<TokenId>> prompts;
  for (std::size_t i = 0; i < 2 * kOfEachKind; ++i) {
    std::vector<TokenId> tokens(kBlocksPerPrompt * 16);
    for (TokenId& token : tokens) token = static_cast<TokenId>(random() % 32'000);
    prompts.push_back(std::move(tokens));
  }
  for (std::size_t i = 0; i < kOfEachKind; ++i)
    leave_idle(victim, Prompt(victim, joined(prompts[i], {{1}}), others));

  // Both kinds are made alike, so that neither lies in the processor's caches as the other does
  // not.
  std::vector<Probe> probes;
  for (std::size_t i = 0; i < prompts.size(); ++i)
    probes.push_back({Prompt(prober, prompts[i], ours), i < kOfEachKind});
  std::shuffle(probes.begin(), probes.end(), random);

  for (TokenId i = 0; i < 200; ++i)  // the first ones pay for what is cold
    (void)nanoseconds_of_match(prober, Prompt(prober, counting(40'000 + i, 128), ours));
  std::vector<double> cached, unknown;
  for (const Probe& probe : probes)
    (probe.is_cached ? cached : unknown).push_back(nanoseconds_of_match(prober, probe.prompt));
  const KolmogorovSmirnov test = kolmogorov_smirnov(cached, unknown);
  std::printf("  cached %5.0f ns, unknown %5.0f ns (medians)   distance %.4f   p %.3g\n",
              median(cached), median(unknown), test.distance, test.p);
  return test;
}

int rounds_below(std::mt19937& random, DomainId others, DomainId ours) {
  int below = 0;
  for (int i = 0; i < kRounds; ++i) below += round(random, others, ours).p <= kLevel;
  return below;
}

int run() {
  std::mt19937 random(chosen_seed());
  std::printf("match latency, %zu probes a round: prompts another domain has cached\n",
              2 * kOfEachKind);
  const int apart = rounds_below(random, DomainId{1}, DomainId{2});
  std::printf("control: prompts cached in the prober's own domain (sharing = all)\n");
  const int together = rounds_below(random, DomainId{0}, DomainId{0});
  const bool is_hidden = apart <= kMayBeBelow, control_sees = together == kRounds;
  std::printf("across domains: p <= %.2f in %d of %d rounds, %s\n", kLevel, apart, kRounds,
              is_hidden ? "cannot be told apart" : "CAN BE TOLD APART");
  std::printf("within one: p <= %.2f in %d of %d rounds, %s\n", kLevel, together, kRounds,
              control_sees ? "as it should be" : "THE TEST SEES NOTHING");
  return is_hidden && control_sees ? 0 : 1;
}

}  // namespace
}  // namespace kvhive::testing

int main() { return kvhive::testing::run(); }
