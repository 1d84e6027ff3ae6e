#pragma once
// Which idle block goes first: vLLM's order (least recently released, the end of a sequence before
// its start) without a shared list, so that there is nothing to unlink on a hit and nothing to
// repair after a crash.
//
// Every release draws stamps from one counter and writes them into its descriptors (truth), last
// block first. The stamp is at the same time a place in a ring of hints: ring[stamp % slots] =
// block. Eviction walks the ring from its head; a hint counts only if its block is idle and still
// bears that very stamp. A block hit or released anew has left a stale hint behind, which costs one
// look.
//
// What the ring cannot tell any more (hints overwritten because nothing was evicted for four
// releases per block, or left behind the head by a process that was killed or overtaken) is found
// again by a scan of the stamps into a private sorted run, which is used up before the ring. So the
// order is exact, however often hints are lost.

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

  /// Stamps blocks that are about to become idle, in the order they should be evicted. To be called
  /// BEFORE the caller's bit is cleared, so that an idle block always has its hint.
  void stamp(std::span<const BlockId> blocks);

  /// The same in two steps, for who has many blocks and walks memory in another order: stamps for
  /// `count` of them, and a block's hint. Not overtaken only if nobody stops in between: invalidate
  /// afterwards.
  std::uint64_t draw(std::size_t count);
  void place(BlockId block, std::uint64_t stamp);

  /// To be called AFTER the bits were cleared: evictors that passed the hints meanwhile get new
  /// ones.
  void settle(std::span<const BlockId> blocks);

  /// The same for blocks that are idle again with their old stamps, as if they had never been held:
  /// they keep their places. Should their hints be used up, everybody scans before the next
  /// eviction.
  void restore(std::span<const BlockId> blocks);

  /// Up to `count` idle blocks, oldest first, appended to `out` with the words they were seen with.
  /// Takes nothing.
  void oldest(std::size_t count, std::vector<Candidate>& out);

  /// The blocks handed out by oldest() since the last commit are used up: later calls go on after
  /// them.
  void commit();
  /// They are not: later calls hand them out again.
  void rollback();

  /// Looks at every block, for when the hints say less than the counters.
  void scan();

  /// After a crash, hints may be behind the head: everybody scans before the next eviction.
  static void invalidate(TierControl& control);

  /// All idle blocks in eviction order. For inspection.
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
  void look_again(std::uint64_t from, std::uint64_t to);
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
