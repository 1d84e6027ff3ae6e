#pragma once
// A block's name: a 128-bit hash, chained over all blocks before it. It leads to candidates and
// proves nothing: the pool compares tokens and parents exactly before it accepts a match, since
// xxHash can collide, even with a secret.
//
// Source: chained block hashes, vLLM v1/core/kv_cache_utils.py hash_block_tokens; XXH3-128 with a
// secret per pool, or SHA-256, keyed with the same secret and cut to 128 bits.

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "base/ids.hpp"
#include "config/choices.hpp"

namespace kvhive {

struct Hash128 {
  std::uint64_t low = 0;
  std::uint64_t high = 0;
  friend bool operator==(const Hash128&, const Hash128&) = default;
};

/// What a block's content depends on besides its tokens and its prefix, such as image embeddings.
/// The caller passes a cryptographic digest, since the content itself cannot be stored and
/// compared. All zero = nothing.
using ExtraKey = std::array<std::uint64_t, 2>;
inline constexpr ExtraKey kNoExtraKey{};
inline bool is_none(const ExtraKey& extra) { return (extra[0] | extra[1]) == 0; }

/// The pool's random secret. A client that does not know it cannot construct collisions or fill one
/// bucket on purpose.
struct HashSecret {
  std::array<std::byte, 192> bytes;
};

/// Fills the secret from the kernel's random generator.
HashSecret random_hash_secret();

/// Hashes chains of blocks under one secret. Cheap to copy; the secret must outlive it.
class BlockHasher {
 public:
  explicit BlockHasher(const HashSecret& secret, HashAlgorithm algorithm = HashAlgorithm::xxhash)
      : secret_(&secret), algorithm_(algorithm) {}

  /// The start of every chain in `domain` and `group`: two domains never share a hash, whatever
  /// their tokens, and neither do two groups.
  Hash128 root(DomainId domain, GroupId group = {}) const;

  /// Name of the block holding `tokens` (a full block's worth) after `parent`.
  Hash128 child(Hash128 parent, std::span<const TokenId> tokens,
                const ExtraKey& extra = kNoExtraKey) const;

  /// Stands for all tokens up to and including `tokens`, if `before` stands for those before them:
  /// SHA-256, keyed with the pool's secret and cut to 128 bits. Never kNoExtraKey.
  ExtraKey digest(const ExtraKey& before, std::span<const TokenId> tokens) const;
  /// The same of `before` and of a block's rows, by their digests (EmbeddedPrompt). Never what the
  /// other digest() gives.
  ExtraKey digest(const ExtraKey& before, std::span<const ExtraKey> rows) const;

  /// Appends to `chain` the names of those full blocks of `tokens` that it does not have yet.
  /// \param salt  the first block's extra key (cache_salt.hpp)
  void extend(std::vector<Hash128>& chain, DomainId domain, std::span<const TokenId> tokens,
              std::size_t tokens_per_block, const ExtraKey& salt = kNoExtraKey) const;

 private:
  Hash128 name_of(const void* bytes, std::size_t count) const;

  const HashSecret* secret_;
  HashAlgorithm algorithm_;
};

}  // namespace kvhive
