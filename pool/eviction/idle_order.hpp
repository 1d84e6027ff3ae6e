#pragma once
// The order in which idle blocks are evicted. It is vLLM's order (least recently released first,
// the end of a sequence before its start), but without a shared list: a hit has nothing to unlink,
// and a crash leaves no list to repair.
//
// Every release draws stamps from one shared counter and writes them into the blocks' descriptors,
// last block first. The stamp in the descriptor is the truth. The stamp is also a position in a
// ring of hints: ring[stamp % slots] = block. Eviction reads the ring from its head on. A hint is
// valid only if its block is idle and still has exactly this stamp. If the block was pinned or
// released since, the hint is stale and is skipped.
//
// A tier can have several lanes: domains whose blocks are evicted by other rules
// (pool/eviction/lanes.hpp). They share ring, tail and stamps, so that stamps tell which of all
// idle blocks is the oldest; but each lane has a head of its own. For a lane's head, hints of other
// lanes' blocks are like stale ones. Without shares of the blocks there is one lane.
//
// If the pool's policy is the second chance (CLOCK; Corbato 1969), a block that was hit since it
// was published, or since its last chance, is not evicted when its turn comes: whoever finds it
// there clears the mark in its word, by one exchange, and gives it a new stamp. The mark is a hint:
// if it is lost, a block is evicted too early. So nothing has to be repaired after a kill in
// between.
//
// The ring can lose hints. They are overwritten if there are more than four releases per block
// without an eviction. They lie before the head, where eviction no longer reads, if a process was
// killed or stopped between writing the stamp and writing the hint. In both cases a process scans
// all stamps into a private list, sorted by stamp (the run), and evicts from the run before it goes
// on with the ring. So the order is exact, however many hints are lost.

#include <atomic>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "base/ids.hpp"
#include "pool/eviction/lanes.hpp"
#include "pool/pool_memory.hpp"

namespace kvhive {

class IdleOrder {
 public:
  IdleOrder(const PoolMemory& memory, Tier tier);

  /// Stamps blocks that are about to become idle, in the order in which they are to be evicted. The
  /// caller clears the holder bits AFTER this call, so that an idle block always has a hint.
  void stamp(std::span<const BlockId> blocks);

  /// The same in two steps, for a caller that writes the stamps of many blocks in another order
  /// (the reaper): draw() draws `count` stamps and returns the first; place() writes one stamp and
  /// its hint. The caller calls invalidate() afterwards, since the ring may have wrapped around in
  /// between.
  std::uint64_t draw(std::size_t count);
  void place(BlockId block, std::uint64_t stamp);

  /// The caller has cleared the holder bits. If an evicting process has moved the head past a
  /// block's hint meanwhile, when the block was not idle yet, the block gets a new stamp and hint.
  void settle(std::span<const BlockId> blocks);

  /// The same for blocks that keep their old stamps, as if they had never been held. If the head
  /// has moved past a block's hint, every process scans before its next eviction.
  void restore(std::span<const BlockId> blocks);

  std::size_t lanes() const { return cursors_.size(); }

  /// What becomes of a block that was hit, when its turn to be evicted comes.
  enum class Chances : std::uint8_t { given, withheld };

  /// Appends up to `count` idle blocks of the lane to `out`, oldest first, with the words that they
  /// had. Does not change these. If chances are given, blocks that were hit go to the end of the
  /// order instead, each once a call.
  void oldest(std::size_t count, std::vector<Candidate>& out, std::size_t lane = 0,
              Chances chances = Chances::given);
  /// The stamp of the block that oldest() would append next; kNoStamp if there is none.
  std::uint64_t next_stamp(std::size_t lane, Chances chances = Chances::given);
  /// How many blocks have got a second chance since the last call.
  std::size_t take_spared() { return std::exchange(spared_, 0); }
  static constexpr std::uint64_t kNoStamp = ~0ull;
  /// How many hints ahead the cache misses of descriptors begin, which lie at random places.
  static constexpr std::uint64_t kAhead = 16;

  /// The block whose hint lies `ahead` positions behind the head of the only lane; up to
  /// kAhead, its descriptor is in the cache or on its way there. For prefetching: the hint may be
  /// stale, and name any number.
  BlockId coming(std::size_t ahead) const {
    const std::uint64_t head = cursors_.front().control->head.load(std::memory_order_relaxed);
    return BlockId{ring_[(head + ahead) & ring_mask_].load(std::memory_order_relaxed)};
  }

  /// The caller has evicted the blocks that oldest() returned since the last commit: later calls
  /// return the blocks after them.
  void commit();
  /// The caller has not evicted them: later calls return them again.
  void rollback();

  /// Scans all stamps. Called when the hints lead to fewer blocks than the counters say there are.
  /// Nothing that oldest() has returned may be uncommitted.
  void scan();

  /// Called when hints may lie before the head, for example after a crash: every process then scans
  /// before its next eviction.
  static void invalidate(TierControl& control);

  /// All idle blocks in eviction order. For tests and reports.
  std::vector<BlockId> order() const;

 private:
  struct Stamped {
    std::uint64_t stamp;
    BlockId block;
  };
  /// Where this process is in one lane.
  struct Cursor {
    std::size_t lane;
    LaneControl* control;
    std::vector<Stamped> run{};  ///< result of the last scan, oldest first
    std::size_t run_next = 0;    ///< entries before this one are used up
    /// Where oldest() goes on; commit() keeps it, rollback() resets it.
    std::size_t run_cursor = 0;
    std::uint64_t run_limit = 0;  ///< the run covers all stamps before this one
    std::uint64_t ring_cursor = 0;
    std::uint64_t epoch = 0;
  };
  static constexpr std::size_t kAnyLane = ~std::size_t{0};
  std::size_t lane_of(BlockView block) const;
  LaneControl& control_of(BlockId block) const;
  bool is_current(std::uint64_t stamp, BlockId block, BlockWord& word,
                  std::size_t lane = kAnyLane) const;
  std::vector<Stamped> idle_before(std::uint64_t limit, std::size_t lane = kAnyLane) const;
  void catch_up(Cursor& at);
  void collect(Cursor& at, std::uint64_t limit);
  bool find_in_run(Cursor& at, Candidate& found, Chances chances);
  std::uint64_t begin_ring(Cursor& at) const;
  bool find_in_ring(Cursor& at, std::uint64_t end, Candidate& found, Chances chances);
  bool spare(Candidate found);
  void commit(Cursor& at);
  static std::uint64_t advance_head(LaneControl& control, std::uint64_t position);
  void rehint_passed(std::size_t lane, std::uint64_t from, std::uint64_t to);
  bool is_overwritten(std::uint64_t position) const;

  BlockDescriptor* descriptors_;
  PoolLayout::TierLayout layout_;
  TierControl* control_;
  std::atomic<std::uint32_t>* ring_;
  std::uint64_t ring_mask_;
  LaneMap lanes_;
  std::vector<Cursor> cursors_;  ///< by lane
  std::size_t spared_ = 0;
};

}  // namespace kvhive
