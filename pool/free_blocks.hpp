#pragma once
// Finds free blocks. A block's word decides whether the block is free. Two hints lead to free
// blocks:
//  - a bitmap in shared memory, for all processes, searched by ascending block id;
//  - a private stack of the blocks that this process has freed itself, last in first out. (So does
//    vLLM since PR #42656: never-cached blocks go to the head of the queue, because they
//    were used most recently.)
// A bit may be set although its block is taken: a process that follows the bit sees that in the
// block's word. After a kill, the bit of a free block may be missing: the reaper sets it. It does
// not matter which free block a process gets; a process that works alone gets blocks in exactly
// vLLM's order.

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

  /// A block that was free when it was looked at, and its word then; nothing if no hint is left.
  std::optional<Candidate> next();

  /// The caller has taken the block, and its word no longer says free. Clears the block's bit.
  void taken(BlockId block) const;

  /// The caller has freed the block, and its word says free, with `generation`. Sets the block's
  /// bit and pushes the block on the private stack.
  void given_back(BlockId block, std::uint64_t generation);

  /// Only sets the block's bit. The reaper calls this for the blocks of a dead process.
  void announce(BlockId block) const;

  /// Whether the block's bit is set in the bitmap, and the bit of its group in the summary.
  bool is_announced(BlockId block) const;

  /// Scans all blocks and sets the missing bits of free blocks. Called when the hints lead to fewer
  /// blocks than the counters say there are: a process may have been stopped while it was clearing
  /// a bit. Returns how many free blocks had no bit.
  std::size_t find_lost() const;

  /// All free blocks in the order in which next() would return them. For tests and reports; must
  /// not be called while other processes allocate.
  std::vector<BlockId> order() const;

 private:
  struct Own {
    BlockId block;
    std::uint64_t generation;
  };
  std::optional<Candidate> pop_own();
  std::optional<Candidate> search_bitmap();
  std::optional<Candidate> search_group(std::size_t group) const;
  bool has_bits(std::size_t group) const;
  std::optional<Candidate> check_bit(std::size_t word_index, unsigned bit) const;
  /// A block with state free and a holder is corrupt: it does not count as free, since the holder
  /// may still use it.
  static bool is_free(BlockId block, BlockWord word) {
    return word.is_free() && block != kNullBlock;
  }
  /// Whether the block has not been taken since this process freed it.
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
