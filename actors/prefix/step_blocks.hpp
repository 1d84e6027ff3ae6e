#pragma once
// Blocks that the step being planned fills. A sequence that is admitted by the same step finds them
// as if they were published: the executor writes the KV of the whole batch before it reads any, in
// each layer. Only this engine can do so; other processes find the blocks when the step is done.
//
// Source: vLLM v1 KVCacheManager.allocate_slots, which registers blocks when they are scheduled.

#include <unordered_map>
#include <vector>

#include "hashing/sequence_names.hpp"
#include "pool/pool_layout.hpp"

namespace kvhive {

/// A sequence, as far as what is found of it depends on it.
struct SequenceContent {
  DomainId domain;
  const SequenceNames& names;
  std::span<const TokenId> tokens;
  Resets resets{};  ///< of the prefix cache, when it was looked up
};

class StepBlocks {
 public:
  StepBlocks(const CacheGroups& groups, std::size_t block_size)
      : groups_(groups), block_size_(block_size), of_(groups.count) {}

  /// The step fills places first .. end-1 of the sequence in this group. What the content refers to
  /// outlives this object.
  void add(const SequenceContent& sequence, GroupId group, std::span<const BlockId> table,
           std::size_t first, std::size_t end);
  /// The blocks that the step fills with what the sequence has at places first, first + 1, ...; at
  /// most `count`, up to the first that there is not.
  std::vector<BlockId> find(const SequenceContent& sequence, GroupId group, std::size_t first,
                            std::size_t count) const;

 private:
  struct Filled {
    BlockId block;
    SequenceContent owner;
  };
  struct ByName {
    std::size_t operator()(const Hash128& name) const { return name.low; }
  };

  CacheGroups groups_;
  std::size_t block_size_;
  std::vector<std::unordered_map<Hash128, Filled, ByName>> of_;  ///< by group
};

}  // namespace kvhive
