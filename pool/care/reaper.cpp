#include "pool/care/reaper.hpp"

#include <algorithm>
#include <span>
#include <vector>

#include "base/kill_point.hpp"
#include "pool/processes/claims.hpp"
#include "pool/eviction/eviction_journal.hpp"
#include "pool/free_blocks.hpp"
#include "pool/eviction/idle_order.hpp"
#include "pool/eviction/lanes.hpp"
#include "base/prefetch.hpp"
#include "pool/prefix_index.hpp"
#include "pool/processes/process_slot.hpp"
#include "pool/tier_counters.hpp"

namespace kvhive {
namespace {

class Sweep {
 public:
  Sweep(const PoolMemory& memory, Tier tier, ProcessSlot dead, Unheld unheld)
      : memory_(memory),
        tier_(tier),
        dead_(dead),
        unheld_(unheld),
        layout_(memory.tier_layout(tier)),
        used_(memory.control().processes[dead.value].counters.used[std::size_t(tier)]),
        lanes_(memory, dead),
        index_(memory.index(), memory.layout().index_buckets),
        free_(memory, tier),
        journal_(memory) {}

  /// Visits each block of the tier once, in the order of memory, and then visits the published
  /// blocks that the dead process held a second time, to release them.
  void run(ReapReport& report) {
    // Unsigned, so that it wraps if a counter is corrupt.
    const auto sum_of_others =
        static_cast<std::uint64_t>(counted_used(memory_.control(), tier_)) - used();
    // Descriptors to prefetch ahead. The hardware prefetcher stops at the end of each page.
    constexpr std::uint32_t kAhead = 32;
    for (std::uint32_t i = 0; i < layout_.blocks; ++i) {
      const BlockId block{layout_.first_block + i};
      prefetch(&memory_.descriptors()[block.value + kAhead]);
      BlockWord now = memory_.block(block).word();
      if (now.is_filled_by(dead_)) {
        now = free_filling(block, now);
        ++report.freed;
      } else if (unheld_ == Unheld::dropped && now.unpinned_by(dead_).is_idle() &&
                 block != kNullBlock) {
        now = drop(block, now);
        report.dropped += now.state() == BlockState::free;
      } else if (now.is_held_by(dead_)) {
        note_held(block);
      }
      // This includes blocks that the dead process freed without announcing them.
      if (now.state() == BlockState::free && !free_.is_announced(block)) free_.announce(block);
      held_by_others_ += now.unpinned_by(dead_).holders() != 0;
      KV_KILL_POINT("reap.after_a_block");
    }
    release();
    report.released += held_.size();
    KV_KILL_POINT("reap.before_invalidate");
    // Three kinds of idle blocks may have their hints before the head of the release order, where
    // no eviction looks: those that the dead process was about to evict, those that it released
    // without reading the head again, and those of held_ that another process has passed by before
    // this one cleared their bits. Every process now scans all stamps once and finds them in their
    // order. So held_ needs no IdleOrder::settle(), which would make its blocks the newest.
    IdleOrder::invalidate(control());
    // The count of held blocks is right only if no other process has worked meanwhile; otherwise
    // the second call counts them again.
    const auto sum = static_cast<std::int64_t>(sum_of_others + used());
    if (!correct_used(memory_.control(), tier_, sum, held_by_others_)) correct_used(memory_, tier_);
    if (tier_ == Tier::device) {
      lanes_.forget_filling();
      recount_lanes(memory_);
    }
  }

 private:
  TierControl& control() const { return memory_.control().tiers[std::size_t(tier_)]; }
  std::uint64_t used() const {
    return static_cast<std::uint64_t>(used_.load(std::memory_order_relaxed));
  }

  /// Frees a block that the dead process was filling; no other process changes such a block.
  /// Returns the block's word as it is now.
  BlockWord free_filling(BlockId block, BlockWord now) {
    KV_KILL_POINT("reap.before_free");
    forget_content(block);
    if (!memory_.block(block).change(now, now.freed())) return memory_.block(block).word();
    count_released();
    return now.freed();
  }

  /// Discards the content of a published block that no living process holds: takes the block in the
  /// dead process's name and frees it. If this process is killed in between, the next sweep finds a
  /// block that the dead process was filling, and frees it. Returns the block's word as it is now;
  /// another process may have pinned the block first.
  BlockWord drop(BlockId block, BlockWord now) {
    KV_KILL_POINT("reap.before_drop");
    if (!memory_.block(block).change(now, now.taken_by(dead_))) {
      const BlockWord other = memory_.block(block).word();
      if (other.is_held_by(dead_)) note_held(block);
      return other;
    }
    KV_KILL_POINT("reap.dropped");
    if (now.holders() == 0) add_used(used_, +1);
    lanes_.dropped(block, lanes_.of(memory_.block(block)), now.holders() == 0);
    journal_.note(Departure::dropped, dead_, {{block}});
    return free_filling(block, now.taken_by(dead_));
  }

  /// Removes the block's hint and uid. A process that was killed during an eviction has left those
  /// of the old content. No other process changes them: the block's holder is dead, and no process
  /// takes a block that is being filled.
  void forget_content(BlockId block) const {
    index_.erase(memory_.block(block).name(), block);
    memory_.block(block).forget_uid();
  }

  void note_held(BlockId block) {
    held_.push_back(block);
    const std::uint32_t depth = depth_of(block);
    if (depth >= at_depth_.size()) at_depth_.resize(depth + 1, 0);
    ++at_depth_[depth];
  }

  /// The block's depth, but at most the number of blocks in the pool. A higher depth is corrupt,
  /// and at_depth_ must not grow to it.
  std::uint32_t depth_of(BlockId block) const {
    return std::min(memory_.block(block).depth(), memory_.geometry().total_blocks());
  }

  /// Releases the published blocks in the order in which the process itself would have: the ends of
  /// sequences are evicted before their starts. So a block's stamp depends on its depth. But the
  /// stamps are written in the order of memory: for a million blocks, writing them in the order of
  /// depth would cost three million cache misses.
  void release() {
    IdleOrder idle(memory_, tier_);
    if (held_.empty()) return;
    std::uint64_t next = idle.draw(held_.size());
    std::vector<std::uint64_t> stamps(at_depth_.size());  // by depth: the next stamp
    for (std::size_t depth = at_depth_.size(); depth-- > 0; next += at_depth_[depth])
      stamps[depth] = next;

    // In groups, because a locked instruction (clear) waits for all stores before it, and most
    // stores of hints miss the cache. In a group, the CPU handles these misses at the same time.
    constexpr std::size_t kTogether = 64;
    for (std::size_t begin = 0; begin < held_.size(); begin += kTogether) {
      const auto together =
          std::span(held_).subspan(begin).first(std::min(kTogether, held_.size() - begin));
      for (const BlockId block : together) {
        // The depth may have been corrupted since it was noted, so it is limited again.
        const std::size_t depth = std::min<std::size_t>(depth_of(block), stamps.size() - 1);
        idle.place(block, stamps[depth]++);
      }
      for (const BlockId block : together) clear(block);
    }
  }

  void clear(BlockId block) {
    const std::size_t lane = lanes_.of(memory_.block(block));
    KV_KILL_POINT("reap.before_clear");
    const BlockWord before = memory_.block(block).unpin(dead_);
    KV_KILL_POINT("reap.cleared");
    if (before.holders() != holder_bit(dead_)) return;
    count_released();
    lanes_.idle_changed(block, lane, +1);
  }

  /// Subtracts 1 from the dead process's counter of held blocks, which only the reaper writes now.
  void count_released() {
    KV_KILL_POINT("reap.before_count");
    add_used(used_, -1);
    KV_KILL_POINT("reap.counted");
  }

  const PoolMemory& memory_;
  Tier tier_;
  ProcessSlot dead_;
  Unheld unheld_;
  const PoolLayout::TierLayout& layout_;
  std::atomic<std::int64_t>& used_;
  Lanes lanes_;  ///< counts in the dead process's slot
  PrefixIndex index_;
  FreeBlocks free_;
  EvictionJournal journal_;
  std::vector<BlockId> held_;  ///< published blocks that the dead process held, by ascending id
  std::vector<std::uint32_t> at_depth_;  ///< by depth: how many blocks of held_
  std::int64_t held_by_others_ = 0;      ///< blocks of the tier that living processes hold
};

}  // namespace

ReapReport reap(const PoolMemory& memory, ProcessSlot dead, Unheld unheld) {
  SlotCounters& counters = memory.control().processes[dead.value].counters;
  withdraw_claims(memory, 1u << dead.value);
  ReapReport report;
  report.requests = counters["running"].load(std::memory_order_relaxed) +
                    counters["waiting"].load(std::memory_order_relaxed);
  Sweep(memory, Tier::device, dead, unheld).run(report);
  Sweep(memory, Tier::host, dead, Unheld::kept).run(report);
  sign_out(memory, dead);
  return report;
}

}  // namespace kvhive
