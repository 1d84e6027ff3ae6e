#pragma once
// An engine that checks the bytes of every hit. The expected bytes are computed from the tokens,
// not from the pool's hashes: so a collision or a corrupt name cannot hide a wrong hit.

#include <cstring>
#include <random>
#include <vector>

#include "pool/block_pool.hpp"
#include "tests/support/request.hpp"

namespace kvhive::testing {

/// Stands for the KV bytes of a block: a function of the domain and of all tokens up to the block's
/// end, and of nothing else.
class PromptOracle {
 public:
  explicit PromptOracle(const PoolMemory& memory) : memory_(memory) {}

  void fill(BlockId block, const Prompt& prompt, std::size_t i) const {
    const std::uint64_t content = content_of(prompt, i);
    for (std::size_t w = 0; w < words(); ++w) {
      const std::uint64_t word = content + w * 0x9e3779b97f4a7c15ull;
      std::memcpy(payload(block) + w * 8, &word, 8);
    }
  }
  bool is_right(BlockId block, const Prompt& prompt, std::size_t i) const {
    const std::uint64_t content = content_of(prompt, i);
    for (std::size_t w = 0; w < words(); ++w) {
      std::uint64_t word = 0;
      std::memcpy(&word, payload(block) + w * 8, 8);
      if (word != content + w * 0x9e3779b97f4a7c15ull) return false;
    }
    return true;
  }

 private:
  static std::uint64_t content_of(const Prompt& prompt, std::size_t i) {
    std::uint64_t hash = 0xcbf29ce484222325ull ^ prompt.domain.value;
    for (const TokenId token : prompt.of_blocks(0, i + 1)) {
      hash = (hash ^ static_cast<std::uint32_t>(token)) * 0x100000001b3ull;
      hash ^= hash >> 29;
    }
    return hash * 0xbf58476d1ce4e5b9ull;
  }
  std::size_t words() const { return memory_.geometry().models[0].kv.block_bytes() / 8; }
  std::byte* payload(BlockId block) const {
    const Tier tier = memory_.tier_of(block);
    const std::size_t place = block.value - memory_.tier_layout(tier).first_block;
    return memory_.arena(tier) + place * memory_.geometry().models[0].kv.block_bytes();
  }

  const PoolMemory& memory_;
};

class CheckedEngine {
 public:
  struct Tally {
    std::uint64_t served = 0, shortages = 0, hits = 0, wrong = 0;
  };

  CheckedEngine(const PoolMemory& memory, ProcessSlot slot, Tally& tally)
      : pool_(memory, slot), oracle_(memory), tally_(tally) {}

  /// Matches, checks the hits, computes and publishes the rest, and holds all blocks. If the pool
  /// has too few blocks, cancels the hit and releases the oldest request.
  void serve(const Prompt& prompt, Tier tier = Tier::device) {
    const PrefixHit hit = match_all(pool_, prompt, tier);
    for (std::size_t i = 0; i < hit.blocks.size(); ++i)
      ++(oracle_.is_right(hit.blocks[i], prompt, i) ? tally_.hits : tally_.wrong);
    const std::size_t missing = prompt.full_blocks() - hit.blocks.size();
    auto fresh = pool_.allocate(tier, missing + prompt.tokens.size() % 2, prompt.domain);
    if (!fresh) {
      ++tally_.shortages;
      pool_.cancel(hit);
      finish_one();
      return;
    }
    const auto published = std::span(*fresh).first(missing);
    for (std::size_t i = 0; i < missing; ++i)
      oracle_.fill(published[i], prompt, hit.blocks.size() + i);
    pool_.publish(hit.end, published, prompt.names(hit.blocks.size(), missing),
                  prompt.of_blocks(hit.blocks.size(), missing));
    held_.push_back(joined_ids(hit.blocks, *fresh));
    ++tally_.served;
  }

  void finish_one() {
    if (held_.empty()) return;
    pool_.release(held_.front());
    held_.erase(held_.begin());
  }
  void finish_all() {
    while (!held_.empty()) finish_one();
  }
  std::size_t running() const { return held_.size(); }
  BlockPool& pool() { return pool_; }

 private:
  BlockPool pool_;
  PromptOracle oracle_;
  Tally& tally_;
  std::vector<std::vector<BlockId>> held_;
};

}  // namespace kvhive::testing
