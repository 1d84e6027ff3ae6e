#include "pool/care/reaper.hpp"

#include <algorithm>
#include <span>
#include <vector>

#include "pool/eviction_journal.hpp"
#include "pool/free_blocks.hpp"
#include "pool/idle_order.hpp"
#include "pool/kill_point.hpp"
#include "pool/prefetch.hpp"
#include "pool/prefix_index.hpp"
#include "pool/process_slot.hpp"
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
        bit_(holder_bit(dead)),
        used_(memory.control().processes[dead.value].counters.used[std::size_t(tier)]),
        index_(memory.index(), memory.layout().index_buckets),
        free_(memory, tier),
        journal_(memory) {}

  /// Looks at each block once, in the order they lie in memory, and then once more at those that
  /// the dead process held.
  void run(ReapReport& report) {
    // Modulo 2^64, should a counter be damaged.
    const auto sum_of_others =
        static_cast<std::uint64_t>(counted_used(memory_.control(), tier_)) - used();
    constexpr std::uint32_t kAhead = 32;  // over the ends of pages, where the hardware stops
    for (std::uint32_t i = 0; i < layout_.blocks; ++i) {
      const BlockId block{layout_.first_block + i};
      prefetch(&memory_.descriptors()[block.value + kAhead]);
      BlockWord now = word(block);
      if (now.state() == BlockState::filling && now.holders() == bit_) {
        now = free_filling(block, now);
        ++report.freed;
      } else if (unheld_ == Unheld::dropped && now.state() == BlockState::ready &&
                 block != kNullBlock && (now.holders() & ~bit_) == 0) {
        now = drop(block, now);
        report.dropped += now.state() == BlockState::free;
      } else if ((now.holders() & bit_) != 0) {
        note_held(block);
      }
      // Also those the dead process gave back without getting as far as telling anybody.
      if (now.state() == BlockState::free && !free_.is_announced(block)) free_.announce(block);
      held_by_others_ += (now.holders() & ~bit_) != 0;
      KV_KILL_POINT("reap.after_a_block");
    }
    release();
    report.released += held_.size();
    KV_KILL_POINT("reap.before_invalidate");
    IdleOrder::invalidate(control());
    // If nobody did anything meanwhile, what we have counted is true.
    const auto sum = static_cast<std::int64_t>(sum_of_others + used());
    if (!correct_used(memory_.control(), tier_, sum, held_by_others_)) correct_used(memory_, tier_);
  }

 private:
  BlockWord word(BlockId block) const {
    return {memory_.descriptors()[block.value].word.load(std::memory_order_acquire)};
  }
  TierControl& control() const { return memory_.control().tiers[std::size_t(tier_)]; }
  std::uint64_t used() const {
    return static_cast<std::uint64_t>(used_.load(std::memory_order_relaxed));
  }

  /// A block the dead process was filling: nobody else touches it. Its word as it is now.
  BlockWord free_filling(BlockId block, BlockWord now) {
    KV_KILL_POINT("reap.before_free");
    forget_content(block);
    const auto freed = BlockWord::make(BlockState::free, now.generation(), 0);
    if (!memory_.descriptors()[block.value].word.compare_exchange_strong(now.bits, freed.bits,
                                                                         std::memory_order_acq_rel))
      return now;
    count_released();
    return freed;
  }

  /// A published block that nobody alive holds. In the dead one's name it is taken and freed: a
  /// sweep that is cut short in between leaves the next one a block that was being filled. Its word
  /// as it is now: somebody may hold it after all.
  BlockWord drop(BlockId block, BlockWord now) {
    const auto taken = BlockWord::make(BlockState::filling, now.generation() + 1, bit_);
    KV_KILL_POINT("reap.before_drop");
    if (!memory_.descriptors()[block.value].word.compare_exchange_strong(
            now.bits, taken.bits, std::memory_order_acq_rel)) {
      if ((now.holders() & bit_) != 0) note_held(block);
      return now;
    }
    KV_KILL_POINT("reap.dropped");
    if (now.holders() == 0) add_used(used_, +1);
    journal_.note(Departure::dropped, dead_, {{block}});
    return free_filling(block, taken);
  }

  /// Had it been killed in the middle of an eviction, the old content's hint and name are still
  /// there. The block is ours alone: its holder is dead, and nobody takes what is being filled.
  void forget_content(BlockId block) const {
    BlockDescriptor& d = memory_.descriptors()[block.value];
    index_.erase(
        {d.hash_low.load(std::memory_order_relaxed), d.hash_high.load(std::memory_order_relaxed)},
        block);
    d.uid.store(0, std::memory_order_relaxed);
  }

  void note_held(BlockId block) {
    held_.push_back(block);
    const std::uint32_t depth = depth_of(block);
    if (depth >= at_depth_.size()) at_depth_.resize(depth + 1, 0);
    ++at_depth_[depth];
  }

  /// No sequence is deeper than there are blocks; more would be damage, and must not cost memory.
  std::uint32_t depth_of(BlockId block) const {
    return std::min(memory_.descriptors()[block.value].depth.load(std::memory_order_relaxed),
                    memory_.geometry().total_blocks());
  }

  /// As the process itself would have: the ends of sequences are to be evicted before their starts.
  /// Stamps are dealt out by depth, but written in the order of memory: a million blocks by depth
  /// would be as many cache misses, three times over.
  void release() {
    IdleOrder idle(memory_, tier_);
    if (held_.empty()) return;
    const std::uint64_t first = idle.draw(held_.size());
    std::uint64_t next = first;
    std::vector<std::uint64_t> stamps(at_depth_.size());  // next one, by depth
    for (std::size_t depth = at_depth_.size(); depth-- > 0; next += at_depth_[depth])
      stamps[depth] = next;

    // Some at a time: a locked instruction waits for every store before it, and most of a hint's
    // miss the cache. So they miss together.
    constexpr std::size_t kTogether = 64;
    for (std::size_t begin = 0; begin < held_.size(); begin += kTogether) {
      const auto together =
          std::span(held_).subspan(begin).first(std::min(kTogether, held_.size() - begin));
      for (const BlockId block : together) {
        // Held by a dead process it is as it was when we noted its depth, unless damaged.
        const std::size_t depth = std::min<std::size_t>(depth_of(block), stamps.size() - 1);
        idle.place(block, stamps[depth]++);
      }
      for (const BlockId block : together) clear(block);
    }
    KV_KILL_POINT("reap.before_settle");
    // Seldom: only an evictor that got as far as the newest hints of all has passed them by.
    if (control().head.load(std::memory_order_seq_cst) > first) idle.settle(held_);
  }

  void clear(BlockId block) {
    KV_KILL_POINT("reap.before_clear");
    const BlockWord before{memory_.descriptors()[block.value].word.fetch_and(
        ~std::uint64_t{bit_}, std::memory_order_seq_cst)};
    KV_KILL_POINT("reap.cleared");
    if (before.holders() == bit_) count_released();
  }

  /// In the dead process' name: with its blocks the reaper takes over its part of the sum.
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
  std::uint32_t bit_;
  std::atomic<std::int64_t>& used_;
  PrefixIndex index_;
  FreeBlocks free_;
  EvictionJournal journal_;
  std::vector<BlockId> held_;            ///< published ones, ascending
  std::vector<std::uint32_t> at_depth_;  ///< how many of them
  std::int64_t held_by_others_ = 0;      ///< blocks of the tier
};

}  // namespace

ReapReport reap(const PoolMemory& memory, ProcessSlot dead, Unheld unheld) {
  ReapReport report;
  Sweep(memory, Tier::device, dead, unheld).run(report);
  Sweep(memory, Tier::host, dead, Unheld::kept).run(report);
  sign_out(memory, dead);
  return report;
}

}  // namespace kvhive
