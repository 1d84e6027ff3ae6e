// Measures pool operations in ns per block. Compares them with the same work in a private pool of
// std::unordered_map and std::list, with the hash alone, and compares a hit with the least that it
// can cost (floor_table.hpp). One process, one run, medians of interleaved rounds.

#include <cstdio>
#include <list>
#include <numeric>
#include <optional>
#include <random>
#include <string>
#include <unordered_map>

#include "base/check.hpp"
#include "tools/bench/floor_table.hpp"
#include "tools/bench/latency.hpp"
#include "tools/bench/paired.hpp"
#include "tools/bench/shared_pool.hpp"

namespace kvhive::bench {
namespace {

constexpr std::size_t kBlocksPerPrompt = 256;
constexpr int kRounds = 9;

struct HashOfHash {
  std::size_t operator()(const Hash128& hash) const { return hash.low; }
};

/// The pool that an engine without sharing would have: a map and an LRU list in private memory,
/// with reference counts, but without holders, without comparison of tokens, and without protection
/// against crashes.
class PrivatePool {
 public:
  explicit PrivatePool(std::uint32_t blocks) : blocks_(blocks) {
    for (std::uint32_t i = 0; i < blocks; ++i) blocks_[i].place = free_.insert(free_.end(), i);
  }

  std::vector<std::uint32_t> match(std::span<const Hash128> chain) {
    std::vector<std::uint32_t> hit;
    for (const Hash128& hash : chain) {
      const auto found = map_.find(hash);
      if (found == map_.end()) break;
      Block& block = blocks_[found->second];
      if (block.references++ == 0) free_.erase(block.place);
      hit.push_back(found->second);
    }
    return hit;
  }

  std::vector<std::uint32_t> allocate(std::size_t count) {
    std::vector<std::uint32_t> taken;
    for (std::size_t i = 0; i < count; ++i) {
      const std::uint32_t index = free_.front();
      free_.pop_front();
      Block& block = blocks_[index];
      if (block.is_cached) map_.erase(block.hash);
      block.is_cached = false;
      block.references = 1;
      taken.push_back(index);
    }
    return taken;
  }

  void publish(std::span<const std::uint32_t> blocks, std::span<const Hash128> chain) {
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      blocks_[blocks[i]].hash = chain[i];
      blocks_[blocks[i]].is_cached = map_.emplace(chain[i], blocks[i]).second;
    }
  }

  void release(std::span<const std::uint32_t> blocks) {
    for (auto index = blocks.rbegin(); index != blocks.rend(); ++index)
      if (--blocks_[*index].references == 0)
        blocks_[*index].place = free_.insert(free_.end(), *index);
  }

 private:
  struct Block {
    Hash128 hash;
    std::list<std::uint32_t>::iterator place;
    std::uint32_t references = 0;
    bool is_cached = false;
  };
  std::vector<Block> blocks_;
  std::list<std::uint32_t> free_;
  std::unordered_map<Hash128, std::uint32_t, HashOfHash> map_;
};

struct Times {
  double hash = 0, match = 0, release_hit = 0, store = 0, release_new = 0;
};

/// Matches and releases every cached prompt, in random order; then stores as many new prompts,
/// which evict the oldest.
template <class Match, class Store, class Release>
Times round(std::vector<Prompt>& cached, std::vector<Prompt>& fresh,
            const std::vector<std::size_t>& order, Match match, Store store, Release release) {
  const double blocks = static_cast<double>(order.size() * kBlocksPerPrompt) / 1e9;
  Times times;
  std::vector<decltype(match(cached[0]))> held;
  for (std::size_t begin = 0; begin < order.size(); begin += 8) {
    held.clear();
    times.match += seconds_of([&] {
      for (std::size_t i = begin; i < begin + 8; ++i) held.push_back(match(cached[order[i]]));
    });
    times.release_hit += seconds_of([&] {
      for (auto& blocks_held : held) release(blocks_held);
    });
  }
  for (std::size_t begin = 0; begin < order.size(); begin += 8) {
    held.clear();
    times.store += seconds_of([&] {
      for (std::size_t i = begin; i < begin + 8; ++i) held.push_back(store(fresh[i]));
    });
    times.release_new += seconds_of([&] {
      for (auto& blocks_held : held) release(blocks_held);
    });
  }
  for (double* time : {&times.match, &times.release_hit, &times.store, &times.release_new})
    *time /= blocks;
  return times;
}

/// Hashes, matches and pins cached prompts, alternating with the floor table prompt by prompt. The
/// tokens are in the CPU's cache, as those of a prompt that has just arrived.
void compare_with_floor(BlockPool& pool, const std::vector<Prompt>& cached) {
  FloorTable floor(cached.size() * kBlocksPerPrompt);
  for (const Prompt& prompt : cached) floor.insert(prompt.tokens);
  const BlockHasher hasher = pool.hasher();
  std::mt19937_64 random(9);
  std::vector<Hash128> chain;
  std::vector<double> ours, theirs, ratio;
  for (int i = 0; i < kRounds; ++i) {
    constexpr int kPrompts = 400;
    double our_time = 0, their_time = 0;
    for (int k = 0; k < kPrompts; ++k) {
      const Prompt& prompt = cached[random() % cached.size()];
      volatile TokenId touched = 0;
      for (const TokenId token : prompt.tokens) touched = token;
      (void)touched;
      their_time += seconds_of([&] { floor.match(prompt.tokens); });
      floor.release();
      PrefixHit hit;
      our_time += seconds_of([&] {
        chain.clear();
        hasher.extend(chain, DomainId{0}, prompt.tokens, kTokensPerBlock);
        hit = pool.match(Tier::device, BlockPool::root({}), chain, prompt.tokens);
      });
      KV_CHECK(hit.blocks.size() == kBlocksPerPrompt, hit.blocks.size());
      pool.release(hit.blocks);
    }
    constexpr double kBlocks = kPrompts * kBlocksPerPrompt / 1e9;
    ours.push_back(our_time / kBlocks);
    theirs.push_back(their_time / kBlocks);
    ratio.push_back(our_time / their_time);
  }
  std::printf("  %-22s %8.1f %10.1f %8.2f\n", "hit beside the floor", median(ours), median(theirs),
              median(ratio));
}

void measure(std::uint32_t blocks) {
  const std::size_t prompts = blocks / kBlocksPerPrompt / 8 * 8;
  PoolGeometry geometry{};
  geometry.device_blocks = blocks + 1;
  geometry.models[0].tokens_per_block = kTokensPerBlock;
  const PoolMemory memory = *PoolMemory::create_private(geometry);
  sign_in(memory, ProcessSlot{0}, 0);
  BlockPool pool(memory, ProcessSlot{0});
  PrivatePool private_pool(blocks);
  const BlockHasher hasher = pool.hasher();

  const auto pool_match = [&](const Prompt& p) { return p.match(pool, kBlocksPerPrompt).blocks; };
  const auto pool_store = [&](const Prompt& p) { return store(pool, p); };
  const auto pool_release = [&](const std::vector<BlockId>& held) { pool.release(held); };
  const auto private_match = [&](const Prompt& p) { return private_pool.match(p.chain); };
  const auto private_store = [&](const Prompt& p) {
    auto taken = private_pool.allocate(kBlocksPerPrompt);
    private_pool.publish(taken, p.chain);
    return taken;
  };
  const auto private_release = [&](const std::vector<std::uint32_t>& held) {
    private_pool.release(held);
  };

  std::vector<Prompt> cached = make_prompts(hasher, prompts, kBlocksPerPrompt);
  for (const Prompt& prompt : cached) {
    pool.release(pool_store(prompt));
    private_pool.release(private_store(prompt));
  }
  std::vector<std::size_t> order(prompts);
  std::iota(order.begin(), order.end(), 0);
  std::mt19937 random(3);

  std::vector<Times> ours, theirs;
  std::vector<double> hash, sha256;
  const HashSecret secret = random_hash_secret();
  const BlockHasher sha256_hasher(secret, HashAlgorithm::sha256);
  const auto time_names = [](const BlockHasher& of, std::vector<Prompt>& named) {
    return seconds_of([&] {
             for (Prompt& prompt : named) {
               prompt.chain.clear();
               of.extend(prompt.chain, DomainId{0}, prompt.tokens, kTokensPerBlock);
             }
           }) *
           1e9 / static_cast<double>(named.size() * kBlocksPerPrompt);
  };
  for (int i = 0; i < kRounds; ++i) {
    std::shuffle(order.begin(), order.end(), random);
    std::vector<Prompt> fresh =
        make_prompts(hasher, prompts, kBlocksPerPrompt, 100 + static_cast<std::uint64_t>(i));
    sha256.push_back(time_names(sha256_hasher, fresh));
    hash.push_back(time_names(hasher, fresh));
    ours.push_back(round(cached, fresh, order, pool_match, pool_store, pool_release));
    theirs.push_back(round(cached, fresh, order, private_match, private_store, private_release));
    cached = std::move(fresh);
  }
  const auto line = [&](const char* name, double Times::*field) {
    std::vector<double> a, b, ratio;
    for (int i = 0; i < kRounds; ++i) {
      a.push_back(ours[static_cast<std::size_t>(i)].*field);
      b.push_back(theirs[static_cast<std::size_t>(i)].*field);
      ratio.push_back(a.back() / b.back());
    }
    std::printf("  %-22s %8.1f %10.1f %8.2f\n", name, median(a), median(b), median(ratio));
  };
  std::printf("%u blocks of %zu tokens, prompts of %zu blocks; ns per block\n", blocks,
              kTokensPerBlock, kBlocksPerPrompt);
  std::printf("  %-22s %8s %10s %8s\n", "", "kvhive", "private", "ratio");
  line("match and pin", &Times::match);
  line("release after a hit", &Times::release_hit);
  line("allocate, publish", &Times::store);
  line("release after storing", &Times::release_new);
  std::printf("  %-22s %8.1f\n", "XXH3-128 chain", median(hash));
  std::printf("  %-22s %8.1f\n", "SHA-256 chain", median(sha256));
  std::printf("  %-22s %8s %10s %8s\n", "", "kvhive", "floor", "ratio");
  compare_with_floor(pool, cached);
  std::printf("\n");
}

/// A pool full of content, in which every block that is taken evicts one.
class FullPool {
 public:
  explicit FullPool(std::uint32_t blocks) : blocks_(blocks) {
    PoolGeometry geometry{};
    geometry.device_blocks = blocks + 1;
    geometry.models[0].tokens_per_block = kTokensPerBlock;
    memory_.emplace(*PoolMemory::create_private(geometry));
    sign_in(*memory_, ProcessSlot{0}, 0);
    pool_.emplace(*memory_, ProcessSlot{0});
    for (const Prompt& prompt :
         make_prompts(pool_->hasher(), blocks / kBlocksPerPrompt, kBlocksPerPrompt))
      pool_->release(store(*pool_, prompt));
  }

  /// Takes the blocks of some prompts one by one, as decoding does.
  void round(std::uint64_t seed) {
    constexpr std::size_t kPrompts = 16;
    double sum = 0;
    for (const Prompt& prompt : make_prompts(pool_->hasher(), kPrompts, kBlocksPerPrompt, seed)) {
      std::vector<BlockId> taken;
      for (std::size_t i = 0; i < kBlocksPerPrompt; ++i) {
        const auto start = Clock::now();
        taken.push_back(pool_->allocate(Tier::device, 1).value().front());
        const std::uint64_t ns = nanoseconds_since(start);
        latencies_.add(ns);
        sum += static_cast<double>(ns);
      }
      pool_->publish(BlockPool::root({}), taken, prompt.chain, prompt.tokens);
      pool_->release(taken);
    }
    means_.push_back(sum / (kPrompts * kBlocksPerPrompt));
  }

  std::uint32_t blocks() const { return blocks_; }
  double mean() const { return median(means_); }
  double p99() const { return 1e3 * latencies_.quantile_us(0.99); }

 private:
  std::uint32_t blocks_;
  std::optional<PoolMemory> memory_;
  std::optional<BlockPool> pool_;
  Latencies latencies_;
  std::vector<double> means_;
};

/// Whether a block costs as much in a large pool as in a small one.
void measure_single_blocks() {
  FullPool small(65'536), large(1'048'576);
  for (std::uint64_t round = 0; round < 40; ++round) {
    small.round(1000 + round);
    large.round(2000 + round);
  }
  std::printf("one block at a time, each evicting; ns\n  %-22s %8s %10s\n", "", "amortised", "p99");
  for (const FullPool* pool : {&small, &large})
    std::printf("  of %-19u %8.0f %10.0f\n", pool->blocks(), pool->mean(), pool->p99());
  std::printf("  %-22s %8.2f %10.2f\n", "ratio", large.mean() / small.mean(),
              large.p99() / small.p99());
}

}  // namespace
}  // namespace kvhive::bench

int main(int argc, char** argv) {
  const bool is_brief = argc > 1 && std::string(argv[1]) == "--brief";
  kvhive::bench::measure(10'000);
  if (is_brief) return 0;
  kvhive::bench::measure(100'000);
  kvhive::bench::measure(1'000'000);
  kvhive::bench::measure_single_blocks();
}
