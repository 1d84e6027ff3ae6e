#pragma once
// Finds the part of a sequence that need not be computed, in all cache groups.
//
// Source: vLLM v1 KVCacheManager.get_computed_blocks and HybridKVCacheCoordinator
// .find_longest_cache_hit. Unlike there, blocks are pinned as they are found, because another
// process could evict them; those that turn out not to be needed go back to their places.
// Blocks that the same step fills are found behind those of the pool
// (actors/prefix/step_blocks.hpp).

#include <span>
#include <vector>

#include "actors/prefix/step_blocks.hpp"
#include "hashing/sequence_names.hpp"
#include "pool/block_pool.hpp"

namespace kvhive {

/// What was found. The process has one more reference to each block.
struct SequenceStart {
  /// In one group, by place in the sequence, `hit` places. A place that no token behind the hit
  /// reads has neither.
  struct OfGroup {
    std::vector<BlockId> device;
    std::vector<BlockId> host;  ///< where the device tier has none
    Prefix end;                 ///< behind the blocks of `device` that are known to be published
  };
  std::vector<OfGroup> groups;
  std::size_t hit = 0;  ///< blocks that need not be computed
  /// Blocks that would not need to be, if the groups of windows had what is read behind them
  /// (GroupsHit::of_first); `hit` or more.
  std::size_t hit_of_first = 0;

  /// All blocks of a tier, group after group.
  std::vector<BlockId> blocks(Tier tier) const;
  /// Places of which some group's block is in the host tier only.
  std::size_t host_places() const;
};

/// \param most      the longest hit that would be of use, in blocks; all have names
/// \param may_promote  whether the host tier is searched, too
/// \param step      blocks that are not published yet and found nevertheless
SequenceStart find_start(BlockPool& pool, const SequenceContent& sequence, std::size_t most,
                         bool may_promote, const StepBlocks& step);

/// The blocks of the sequence in `tier` from place `first` on: those that are there without a gap
/// in a group of full attention, all that are there in others. `from` is the prefix at `first`.
/// The null block stands where there is none.
std::vector<BlockId> find_blocks(BlockPool& pool, Tier tier, const SequenceContent& sequence,
                                 const Prefix& from, std::size_t end);

/// Appends the blocks of a table, but for null blocks.
void append_blocks(std::vector<BlockId>& list, std::span<const BlockId> table);

}  // namespace kvhive
