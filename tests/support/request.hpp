#pragma once
// Runs a request against the pool as vLLM's KVCacheManager does: matches the longest prefix,
// allocates the rest, publishes full blocks, and releases all at the end.

#include <algorithm>
#include <cstddef>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "pool/block_pool.hpp"

namespace kvhive::testing {

/// `count` tokens counting up from `first`.
inline std::vector<TokenId> counting(TokenId first, std::size_t count) {
  std::vector<TokenId> tokens(count);
  for (std::size_t i = 0; i < count; ++i) tokens[i] = first + static_cast<TokenId>(i);
  return tokens;
}

inline std::vector<TokenId> joined(std::vector<TokenId> front, std::span<const TokenId> back) {
  front.insert(front.end(), back.begin(), back.end());
  return front;
}

/// Ids as plain numbers, for comparing with literals.
inline std::vector<std::uint32_t> numbers(std::span<const BlockId> blocks) {
  std::vector<std::uint32_t> values;
  for (const BlockId block : blocks) values.push_back(block.value);
  return values;
}

inline std::vector<BlockId> joined_ids(std::vector<BlockId> front, std::span<const BlockId> back) {
  front.insert(front.end(), back.begin(), back.end());
  return front;
}

/// Tokens with the names of their full blocks.
struct Prompt {
  Prompt(const BlockPool& pool, std::vector<TokenId> all_tokens, DomainId in = DomainId{0},
         const ExtraKey& of_salt = kNoExtraKey)
      : domain(in),
        tokens(std::move(all_tokens)),
        block_tokens(pool.tokens_per_block()),
        salt(of_salt) {
    pool.hasher().extend(chain, domain, tokens, block_tokens, salt);
    extras.resize(chain.size(), kNoExtraKey);
    if (!extras.empty()) extras.front() = salt;
  }

  std::size_t full_blocks() const { return chain.size(); }
  /// How many blocks may be taken from the cache: at least one token is always computed.
  std::size_t matchable_blocks() const {
    return tokens.empty() ? 0 : (tokens.size() - 1) / block_tokens;
  }
  std::span<const Hash128> names(std::size_t first, std::size_t count) const {
    return std::span(chain).subspan(first, count);
  }
  std::span<const ExtraKey> extras_of(std::size_t first, std::size_t count) const {
    return std::span(extras).subspan(first, count);
  }
  std::span<const TokenId> of_blocks(std::size_t first, std::size_t count) const {
    return std::span(tokens).subspan(first * block_tokens, count * block_tokens);
  }

  DomainId domain;
  std::vector<TokenId> tokens;
  std::size_t block_tokens;
  ExtraKey salt;
  std::vector<Hash128> chain;
  std::vector<ExtraKey> extras;  ///< the first block's is the salt
};

/// Longest hit among the first `blocks` blocks of the prompt.
inline PrefixHit match_blocks(BlockPool& pool, const Prompt& prompt, std::size_t blocks,
                              Tier tier = Tier::device) {
  const Prefix root = BlockPool::root(prompt.domain, {}, 0, pool.memory().resets());
  return pool.match(tier, root, prompt.names(0, blocks), prompt.of_blocks(0, blocks),
                    prompt.extras_of(0, blocks));
}

inline PrefixHit match_all(BlockPool& pool, const Prompt& prompt, Tier tier = Tier::device) {
  return match_blocks(pool, prompt, prompt.full_blocks(), tier);
}

struct Request {
  std::vector<BlockId> blocks;  ///< the block table
  std::size_t hits = 0;         ///< how many of them the match found
  Prefix end;                   ///< after the full blocks
};

/// vLLM's get_computed_blocks and allocate_slots. On a shortage returns nothing and changes
/// nothing.
inline std::optional<Request> admit(BlockPool& pool, const Prompt& prompt) {
  PrefixHit hit = match_blocks(pool, prompt, prompt.matchable_blocks());
  const std::size_t needed =
      (prompt.tokens.size() + prompt.block_tokens - 1) / prompt.block_tokens - hit.blocks.size();
  auto fresh = pool.allocate(Tier::device, needed, prompt.domain);
  if (!fresh) {
    pool.cancel(hit);
    return std::nullopt;
  }
  Request request{hit.blocks, hit.blocks.size(), hit.end};
  request.blocks.insert(request.blocks.end(), fresh->begin(), fresh->end());
  const std::size_t full = prompt.full_blocks() - request.hits;
  request.end = pool.publish(hit.end, std::span(request.blocks).subspan(request.hits, full),
                             prompt.names(request.hits, full), prompt.of_blocks(request.hits, full),
                             prompt.extras_of(request.hits, full));
  return request;
}

/// Computes and publishes a prompt's blocks and releases them: they are idle then.
inline Request leave_idle(BlockPool& pool, const Prompt& prompt) {
  Request request = admit(pool, prompt).value();
  pool.release(request.blocks);
  return request;
}

}  // namespace kvhive::testing
