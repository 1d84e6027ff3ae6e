#pragma once
// Finds free blocks. The block's word says whether it is free; here are two hints that lead to it:
//  - a bitmap in shared memory, searched by ascending id, for all processes;
//  - a private stack of the blocks that this process has freed itself, last in first out (vLLM
//  since
//    PR #42656: never-cached blocks go to the head of the queue; they are the warm ones).
// A bit may be set for a block that is taken (its taker sees that in the word) and, after a kill,
// be missing for a free one (the reaper sets it again). All free blocks are alike, so across
// processes any of them will do; a process that works alone gets vLLM's order exactly.

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

  /// A block that is probably free, and the word it was seen with; nothing if no hint is left.
  std::optional<Candidate> next();

  /// To be called when this process has taken the block: its word no longer says free.
  void taken(BlockId block) const;

  /// To be called when this process has freed the block: its word says free, with `generation`.
  void given_back(BlockId block, std::uint64_t generation);

  /// Sets the bit only. The reaper does this for the blocks of a dead process.
  void announce(BlockId block) const;

  /// Whether the block's bit is set, and so is the summary's bit for its bitmap word.
  bool is_announced(BlockId block) const;

  /// Scans all blocks, for when the hints name fewer than the counters say there are: a process may
  /// have been stopped while it cleared a bit. Returns how many free blocks had no hint.
  std::size_t find_lost() const;

  /// All free blocks in the order in which next() would return them. For tests and reports; not
  /// while other processes allocate.
  std::vector<BlockId> order() const;

 private:
  struct Own {
    BlockId block;
    std::uint64_t generation;
  };
  std::optional<Candidate> pop_own();
  std::optional<Candidate> search_bitmap();
  std::optional<Candidate> check_bit(std::size_t word_index, unsigned bit) const;
  /// A free block with a holder is corrupt, and the holder may still be using it.
  static bool is_free(BlockId block, BlockWord word) {
    return word.is_free() && block != kNullBlock;
  }
  /// The block was not taken since this process freed it.
  static bool is_current(const Own& entry, BlockWord word) {
    return word == BlockWord::make(BlockState::free, entry.generation, 0);
  }
  BlockWord word(BlockId block) const { return BlockView(descriptors_[block.value]).word(); }
  void drop_stale_own();

  BlockDescriptor* descriptors_;
  PoolLayout::TierLayout layout_;
  std::atomic<std::uint64_t>* bitmap_;
  std::atomic<std::uint64_t>* summary_;
  std::vector<Own> own_;
};

}  // namespace kvhive
