#pragma once
// A pool full of published prompts. Several processes attach to it, as the engines of a daemon do.

#include <cstdint>
#include <random>
#include <vector>

#include "base/check.hpp"
#include "pool/block_pool.hpp"
#include "pool/processes/process_slot.hpp"

namespace kvhive::bench {

inline constexpr std::size_t kTokensPerBlock = 16;

struct Prompt {
  std::vector<TokenId> tokens;
  std::vector<Hash128> chain;

  PrefixHit match(BlockPool& pool, std::size_t blocks) const {
    return pool.match(Tier::device, BlockPool::root({}), std::span(chain).first(blocks),
                      std::span(tokens).first(blocks * kTokensPerBlock));
  }
};

class SharedPool {
 public:
  /// \param kv  the layout of a block's KV; with block_bytes() == 0 the blocks have no KV
  explicit SharedPool(std::uint32_t blocks, const KvLayout& kv = {}) {
    geometry_.device_blocks = blocks;
    geometry_.models[0].tokens_per_block = kTokensPerBlock;
    geometry_.models[0].kv = kv;
    auto fds = create_pool_objects(geometry_);
    KV_CHECK(fds.has_value(), fds.error().text);
    fds_ = std::move(*fds);
    const auto formatted = PoolMemory::format(fds_, geometry_);
    KV_CHECK(formatted.has_value(), formatted.error().text);
  }

  PoolMemory attach() const {
    auto memory = PoolMemory::attach(fds_, Access::read_write);
    KV_CHECK(memory.has_value(), memory.error().text);
    return std::move(*memory);
  }

  const PoolGeometry& geometry() const { return geometry_; }

 private:
  PoolGeometry geometry_;
  PoolFds fds_;
};

/// Makes prompts of random tokens, so that no two prompts share a block.
inline std::vector<Prompt> make_prompts(const BlockHasher& hasher, std::size_t count,
                                        std::size_t blocks, std::uint64_t seed = 1) {
  std::mt19937_64 random(seed);
  std::vector<Prompt> prompts(count);
  for (Prompt& prompt : prompts) {
    prompt.tokens.resize(blocks * kTokensPerBlock);
    for (TokenId& token : prompt.tokens) token = static_cast<TokenId>(random() % 150'000);
    hasher.extend(prompt.chain, DomainId{0}, prompt.tokens, kTokensPerBlock);
  }
  return prompts;
}

/// Allocates and publishes a prompt's blocks, as an engine that computes it would. The caller then
/// holds the blocks.
inline std::vector<BlockId> store(BlockPool& pool, const Prompt& prompt) {
  auto blocks = pool.allocate(Tier::device, prompt.chain.size());
  KV_CHECK(blocks.has_value(), blocks.error().text);
  pool.publish(BlockPool::root({}), *blocks, prompt.chain, prompt.tokens);
  return *blocks;
}

}  // namespace kvhive::bench
