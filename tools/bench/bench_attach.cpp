// Measures the first matches of a process that has just attached, compared with its later matches,
// and the time that attaching takes. Every match is of another prompt, so the later matches are
// faster only because the process is warm, not because the prompt is.

#include <cstdio>
#include <numeric>
#include <string>

#include "tools/bench/forked.hpp"
#include "tools/bench/latency.hpp"
#include "tools/bench/paired.hpp"
#include "tools/bench/shared_pool.hpp"

namespace kvhive::bench {
namespace {

constexpr std::size_t kBlocksPerPrompt = 64;
constexpr std::size_t kFirst = 32;   ///< matches that count as first ones
constexpr std::size_t kLater = 512;  ///< matches after them; the last kFirst count as later ones
constexpr ProcessSlot kWriter{0}, kNewcomer{1};

struct Arrival {
  double attach_ms;
  /// Time of the first match; mean of the other first matches; mean of the later matches.
  double very_first_us, first_us, later_us;
};

double mean_match_us(BlockPool& pool, const std::vector<Prompt>& prompts,
                     std::span<const std::size_t> order) {
  double seconds = 0;
  std::vector<PrefixHit> hits;
  hits.reserve(order.size());
  for (const std::size_t i : order) {
    // An engine hashes a prompt just before it matches it, so the tokens are in the cache here,
    // too.
    std::vector<Hash128> chain;
    pool.hasher().extend(chain, DomainId{0}, prompts[i].tokens, kTokensPerBlock);
    KV_CHECK(chain == prompts[i].chain);
    seconds += seconds_of([&] { hits.push_back(prompts[i].match(pool, kBlocksPerPrompt)); });
  }
  for (const PrefixHit& hit : hits) {
    KV_CHECK(hit.blocks.size() == kBlocksPerPrompt);
    pool.release(hit.blocks);
  }
  return seconds * 1e6 / static_cast<double>(order.size());
}

Arrival arrive(const SharedPool& shared, const std::vector<Prompt>& prompts, std::uint32_t seed) {
  std::vector<std::size_t> order(prompts.size());
  std::iota(order.begin(), order.end(), 0);
  std::shuffle(order.begin(), order.end(), std::mt19937(seed));
  Arrival arrival{};
  const auto start = Clock::now();
  const PoolMemory memory = shared.attach();
  sign_in(memory, kNewcomer, 1);
  BlockPool pool(memory, kNewcomer);
  arrival.attach_ms = static_cast<double>(nanoseconds_since(start)) / 1e6;
  const std::span<const std::size_t> all(order);
  arrival.very_first_us = mean_match_us(pool, prompts, all.first(1));
  arrival.first_us = mean_match_us(pool, prompts, all.subspan(1, kFirst));
  (void)mean_match_us(pool, prompts, all.subspan(1 + kFirst, kLater - kFirst));
  arrival.later_us = mean_match_us(pool, prompts, all.subspan(1 + kLater, kFirst));
  return arrival;
}

void measure(std::uint32_t blocks, int arrivals) {
  const auto start = Clock::now();
  const SharedPool shared(blocks);
  const double made_ms = static_cast<double>(nanoseconds_since(start)) / 1e6;
  std::vector<Prompt> prompts;
  {
    const PoolMemory memory = shared.attach();
    sign_in(memory, kWriter, 0);
    BlockPool pool(memory, kWriter);
    prompts = make_prompts(pool.hasher(), (blocks - 1) / kBlocksPerPrompt, kBlocksPerPrompt);
    for (const Prompt& prompt : prompts) pool.release(store(pool, prompt));
  }
  std::vector<double> attach, very_first, first, later, ratio;
  Shared<Arrival> arrival;
  for (int i = 0; i < arrivals; ++i) {
    Forked newcomer([&] { *arrival = arrive(shared, prompts, static_cast<std::uint32_t>(i)); });
    KV_CHECK(newcomer.collect());
    attach.push_back(arrival->attach_ms);
    very_first.push_back(arrival->very_first_us);
    first.push_back(arrival->first_us);
    later.push_back(arrival->later_us);
    ratio.push_back(arrival->first_us / arrival->later_us);
  }
  const PoolLayout layout(shared.geometry());
  const double mib = static_cast<double>(layout.metadata_bytes + layout.tokens_bytes) / (1 << 20);
  std::printf("%u blocks, %.0f MiB of metadata and tokens; %d attaches, medians\n", blocks, mib,
              arrivals);
  std::printf("  made and formatted          %8.1f ms\n", made_ms);
  std::printf("  attach, until it can match  %8.2f ms\n", median(attach));
  std::printf(
      "  match of %zu blocks: the very first %.1f us, the next %zu %.1f us, later %.1f us\n",
      kBlocksPerPrompt, median(very_first), kFirst, median(first), median(later));
  std::printf("  first over later            %8.2f\n\n", median(ratio));
}

}  // namespace
}  // namespace kvhive::bench

int main(int argc, char** argv) {
  setvbuf(stdout, nullptr, _IOLBF, 0);  // forked children must not print it again
  const bool is_brief = argc > 1 && std::string(argv[1]) == "--brief";
  kvhive::bench::measure(65'536, is_brief ? 3 : 100);
  if (is_brief) return 0;
  kvhive::bench::measure(1'048'576, 50);
}
