#include "pool/reaper.hpp"

#include <algorithm>
#include <vector>

#include "pool/free_blocks.hpp"
#include "pool/idle_order.hpp"
#include "pool/kill_point.hpp"
#include "pool/prefix_index.hpp"
#include "pool/tier_counters.hpp"

namespace kvhive {
namespace {

class Sweep {
 public:
  Sweep(const PoolMemory& memory, Tier tier, ProcessSlot dead)
      : memory_(memory),
        tier_(tier),
        layout_(memory.tier_layout(tier)),
        bit_(holder_bit(dead)),
        used_(memory.control().processes[dead.value].counters.used[std::size_t(tier)]),
        index_(memory.index(), memory.layout().index_buckets),
        free_(memory, tier) {}

  void run(ReapReport& report) {
    std::vector<BlockId> released;
    for (std::uint32_t i = 0; i < layout_.blocks; ++i) {
      const BlockId block{layout_.first_block + i};
      BlockWord now = word(block);
      if (now.state() == BlockState::filling && now.holders() == bit_) {
        KV_KILL_POINT("reap.before_free");
        forget_content(block);
        const auto freed = BlockWord::make(BlockState::free, now.generation(), 0);
        if (memory_.descriptors()[block.value].word.compare_exchange_strong(
                now.bits, freed.bits, std::memory_order_acq_rel))
          count_released();
        ++report.freed;
      } else if ((now.holders() & bit_) != 0) {
        released.push_back(block);
      }
      // Also those the dead process gave back without getting as far as telling anybody.
      if (word(block).state() == BlockState::free) free_.announce(block);
      KV_KILL_POINT("reap.after_a_block");
    }
    release(released);
    report.released += released.size();
    KV_KILL_POINT("reap.before_invalidate");
    IdleOrder::invalidate(control());
  }

 private:
  BlockWord word(BlockId block) const {
    return {memory_.descriptors()[block.value].word.load(std::memory_order_acquire)};
  }
  TierControl& control() const { return memory_.control().tiers[std::size_t(tier_)]; }

  /// Had it been killed in the middle of an eviction, the old content's hint and name are still
  /// there. The block is ours alone: its holder is dead, and nobody takes what is being filled.
  void forget_content(BlockId block) const {
    BlockDescriptor& d = memory_.descriptors()[block.value];
    index_.erase(
        {d.hash_low.load(std::memory_order_relaxed), d.hash_high.load(std::memory_order_relaxed)},
        block);
    d.uid.store(0, std::memory_order_relaxed);
  }

  /// As the process itself would have: the ends of sequences are to be evicted before their starts.
  void release(std::vector<BlockId>& blocks) {
    const auto depth = [this](BlockId block) {
      return memory_.descriptors()[block.value].depth.load(std::memory_order_relaxed);
    };
    std::stable_sort(blocks.begin(), blocks.end(),
                     [&](BlockId a, BlockId b) { return depth(a) > depth(b); });
    IdleOrder idle(memory_, tier_);
    idle.stamp(blocks);
    for (const BlockId block : blocks) {
      KV_KILL_POINT("reap.before_clear");
      const BlockWord before{memory_.descriptors()[block.value].word.fetch_and(
          ~std::uint64_t{bit_}, std::memory_order_seq_cst)};
      KV_KILL_POINT("reap.cleared");
      if (before.holders() == bit_) count_released();
    }
    KV_KILL_POINT("reap.before_settle");
    idle.settle(blocks);
  }

  /// In the dead process' name: with its blocks the reaper takes over its part of the sum.
  void count_released() {
    KV_KILL_POINT("reap.before_count");
    add_used(used_, -1);
    KV_KILL_POINT("reap.counted");
  }

  const PoolMemory& memory_;
  Tier tier_;
  const PoolLayout::TierLayout& layout_;
  std::uint32_t bit_;
  std::atomic<std::int64_t>& used_;
  PrefixIndex index_;
  FreeBlocks free_;
};

/// The slot is vacant again. The pid goes last: until then the holder bits have an owner to name.
void vacate(ProcessEntry& process) {
  KV_KILL_POINT("vacate.before");
  process.counters.running.store(0, std::memory_order_relaxed);
  KV_KILL_POINT("vacate.half");
  process.counters.waiting.store(0, std::memory_order_relaxed);
  KV_KILL_POINT("vacate.before_pid");
  process.pid.store(0, std::memory_order_release);
  KV_KILL_POINT("vacate.done");
}

}  // namespace

ReapReport reap(const PoolMemory& memory, ProcessSlot dead) {
  ReapReport report;
  ProcessEntry& process = memory.control().processes[dead.value];
  for (const Tier tier : {Tier::device, Tier::host}) {
    Sweep sweep(memory, tier, dead);
    sweep.run(report);
    correct_used(memory, tier);
  }
  vacate(process);
  return report;
}

}  // namespace kvhive
