#pragma once
// Where to look for blocks that hold nothing. Two hints for one truth (the block word):
//  - a bitmap in shared memory, searched by ascending id, for everybody;
//  - a private stack of what this process gave back itself, last in first out (vLLM since PR
//    #42656: never-cached blocks go to the head of the queue; they are the warm ones).
// A bit may be set for a block that is taken (the taker notices at the word) and, after a kill,
// missing for a free one (the reaper sets it again). Free blocks are all alike, so across processes
// "some free block" is exact enough; alone, a process sees precisely vLLM's order.

#include <atomic>
#include <cstdint>
#include <optional>
#include <vector>

#include "base/ids.hpp"
#include "pool/pool_memory.hpp"

namespace kvhive {

class FreeBlocks {
 public:
  FreeBlocks(const PoolMemory& memory, Tier tier);

  /// A block that is probably free, and the word it was seen with; nothing when the hints are used
  /// up.
  std::optional<Candidate> next();

  /// The block was taken: its word no longer says free.
  void taken(BlockId block) const;

  /// The block's word says free again, with `generation`; by this process.
  void given_back(BlockId block, std::uint64_t generation);

  /// Sets the bit only: what the reaper does for blocks a dead process had.
  void announce(BlockId block) const;

  /// Whether the bit is set, and the word it is in can be found.
  bool is_announced(BlockId block) const;

  /// Looks at every block, for when the hints say less than the counters (somebody was stopped
  /// while clearing a bit). How many free blocks had no hint.
  std::size_t find_lost() const;

  /// All free blocks in the order next() would give them. For inspection; not while others
  /// allocate.
  std::vector<BlockId> order() const;

 private:
  std::optional<Candidate> pop_own();
  std::optional<Candidate> search_bitmap();
  std::optional<Candidate> check_bit(std::size_t word_index, unsigned bit) const;
  /// Not so if damage has left it a holder, who may still be using it.
  static bool is_free(BlockId block, BlockWord word) {
    return word.state() == BlockState::free && word.holders() == 0 && block != kNullBlock;
  }
  BlockWord word(BlockId block) const {
    return {descriptors_[block.value].word.load(std::memory_order_acquire)};
  }
  void drop_stale_own();

  struct Own {
    BlockId block;
    std::uint64_t generation;
  };
  BlockDescriptor* descriptors_;
  PoolLayout::TierLayout layout_;
  std::atomic<std::uint64_t>* bitmap_;
  std::atomic<std::uint64_t>* summary_;
  std::vector<Own> own_;
};

}  // namespace kvhive
