#pragma once
// The names of a sequence's full blocks in all cache groups.
//
// In a group of full attention, a block is chained to the one before it, by name and by its parent.
// In other groups, blocks go while those behind them are still found, so a block must be known
// without its parent: each is named as the first of a sequence is, with a digest of all tokens
// before it as its extra key. Tokens and digest are compared exactly, as everywhere. The digest is
// cryptographic: it stands for tokens that cannot be compared.
//
// A block of a prompt that is given as embeddings has a digest of its rows in its extra key, too.

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "config/cache_groups.hpp"
#include "hashing/block_hash.hpp"
#include "hashing/embedded_prompt.hpp"

namespace kvhive {

class SequenceNames {
 public:
  /// \param start  the first block's extra key; everything behind depends on it
  /// \param embedded  the sequence's first tokens, if they are given as embeddings
  SequenceNames(const CacheGroups& groups, DomainId domain, std::size_t tokens_per_block,
                const ExtraKey& start = kNoExtraKey,
                std::shared_ptr<const EmbeddedPrompt> embedded = nullptr)
      : groups_(groups),
        domain_(domain),
        tokens_per_block_(tokens_per_block),
        digest_(start),
        embedded_(std::move(embedded)) {}

  /// Names those full blocks of `tokens` that have no names yet.
  void extend(const BlockHasher& hasher, std::span<const TokenId> tokens);

  /// How many blocks have names.
  std::size_t blocks() const { return of_[0].names.size(); }
  std::span<const Hash128> names(GroupId group) const { return of_[groups_.place(group)].names; }
  /// The blocks' extra keys; empty if none has one.
  std::span<const ExtraKey> extras(GroupId group) const { return of_[groups_.place(group)].extras; }
  /// Stands for what is before a block, together with its parent in the first group; the block is a
  /// full one, or follows the last of these. For sequences of tokens.
  ExtraKey before(std::size_t block) const;

 private:
  struct OfGroup {
    std::vector<Hash128> names;
    std::vector<ExtraKey> extras;
  };
  ExtraKey with_rows(const BlockHasher& hasher, const ExtraKey& before, std::size_t block) const;

  CacheGroups groups_;
  DomainId domain_;
  std::size_t tokens_per_block_;
  ExtraKey digest_;  ///< of all tokens in named blocks
  std::shared_ptr<const EmbeddedPrompt> embedded_;
  std::vector<OfGroup> of_ = std::vector<OfGroup>(groups_.count);
};

}  // namespace kvhive
