#pragma once
// The order in which idle blocks are evicted: vLLM's (least recently released first, the end of a
// sequence before its start), without a shared list. So a hit unlinks nothing, and a crash leaves
// nothing to repair.
//
// Every release draws stamps from one counter and writes them into the descriptors, last block
// first. The descriptor's stamp is the truth. It is also a place in a ring of hints:
// ring[stamp % slots] = block. Eviction walks the ring from its head; a hint counts only if its
// block is idle and still has that very stamp. A block that was pinned or released since has left a
// stale hint behind, which costs one look.
//
// The ring loses hints: they are overwritten if nothing is evicted for four releases per block, and
// left behind the head if a process was killed or stopped between stamp and hint. Then all stamps
// are scanned into a private sorted run, which is used up before the ring. So the order is exact,
// however often hints are lost.

#include <atomic>
#include <cstdint>
#include <span>
#include <vector>

#include "base/ids.hpp"
#include "pool/pool_memory.hpp"

namespace kvhive {

class IdleOrder {
 public:
  IdleOrder(const PoolMemory& memory, Tier tier);

  /// Stamps blocks that are about to become idle, in the order in which they should be evicted. To
  /// be called BEFORE the holder bits are cleared, so that an idle block always has its hint.
  void stamp(std::span<const BlockId> blocks);

  /// The same in two steps, for a caller that walks many blocks in another order (the reaper):
  /// draw() returns the first of `count` stamps, place() writes one and its hint. The caller
  /// invalidates afterwards, since the ring may have gone round in between.
  std::uint64_t draw(std::size_t count);
  void place(BlockId block, std::uint64_t stamp);

  /// To be called AFTER the holder bits are cleared. Blocks whose hints an evicting process passed
  /// meanwhile get new stamps and hints.
  void settle(std::span<const BlockId> blocks);

  /// The same for blocks that keep their old stamps, as if they had never been held. If their hints
  /// were passed, every process scans before its next eviction.
  void restore(std::span<const BlockId> blocks);

  /// Up to `count` idle blocks, oldest first, appended to `out` with the words they were seen with.
  /// Takes nothing.
  void oldest(std::size_t count, std::vector<Candidate>& out);

  /// The blocks that oldest() returned since the last commit are evicted: later calls go on behind
  /// them.
  void commit();
  /// They are not: later calls return them again.
  void rollback();

  /// Scans all stamps, for when the hints name fewer blocks than the counters say there are.
  void scan();

  /// Hints may be behind the head, as after a crash: every process scans before its next eviction.
  static void invalidate(TierControl& control);

  /// All idle blocks in eviction order. For tests and reports.
  std::vector<BlockId> order() const;

 private:
  struct Stamped {
    std::uint64_t stamp;
    BlockId block;
  };
  bool is_current(std::uint64_t stamp, BlockId block, BlockWord& word) const;
  std::vector<Stamped> idle_before(std::uint64_t limit) const;
  void catch_up();
  void collect(std::uint64_t limit);
  void take_from_run(std::size_t wanted, std::vector<Candidate>& out);
  void take_from_ring(std::size_t wanted, std::vector<Candidate>& out);
  std::uint64_t advance_head(std::uint64_t position);
  void rehint_passed(std::uint64_t from, std::uint64_t to);
  bool is_overwritten(std::uint64_t position) const;

  BlockDescriptor* descriptors_;
  PoolLayout::TierLayout layout_;
  TierControl* control_;
  std::atomic<std::uint32_t>* ring_;
  std::uint64_t ring_mask_;

  std::vector<Stamped> run_;  ///< oldest first; entries before run_next_ are used up
  std::size_t run_next_ = 0;
  std::size_t run_cursor_ = 0;   ///< where oldest() goes on, between commit and rollback
  std::uint64_t run_limit_ = 0;  ///< the run covers all stamps before this one
  std::uint64_t ring_cursor_ = 0;
  std::uint64_t epoch_ = 0;
};

}  // namespace kvhive
