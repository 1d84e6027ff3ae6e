#include "pool/care/repair.hpp"

#include <algorithm>
#include <vector>

#include "pool/care/reaper.hpp"
#include "pool/care/soundness.hpp"
#include "pool/processes/claims.hpp"
#include "pool/eviction/eviction_journal.hpp"
#include "pool/free_blocks.hpp"
#include "pool/eviction/idle_order.hpp"
#include "pool/eviction/lanes.hpp"
#include "pool/prefix_index.hpp"
#include "pool/tier_counters.hpp"

namespace kvhive {
namespace {

class Repair {
 public:
  Repair(const PoolMemory& memory, const SlotOwners& owners)
      : memory_(memory), owners_(owners), index_(memory.index(), memory.layout().index_buckets) {}

  RepairReport run() {
    mend_header();
    for (const Tier tier : kBothTiers) mend_order(tier);
    mend_serials();
    mend_resets();
    mend_slots();
    mend_words();
    reap_strangers();
    report_.fields += withdraw_claims(memory_, ~used_slots());
    mend_identities();
    drop_hints();
    restore_hints();
    for (const Tier tier : kBothTiers) {
      mend_ends(tier);
      report_.free_listed += FreeBlocks(memory_, tier).find_lost();
      restamp(tier);
      count_retired(tier);
      correct_used(memory_, tier);
      // Idle blocks whose places in the release order lie before its head would never be evicted.
      // This makes every process scan all stamps before its next eviction, which finds them.
      IdleOrder::invalidate(control(tier));
    }
    recount_lanes(memory_);
    return report_;
  }

 private:
  static constexpr std::array<Tier, kTiers> kBothTiers = {Tier::device, Tier::host};

  TierControl& control(Tier tier) const { return memory_.control().tiers[std::size_t(tier)]; }
  BlockView view(BlockId block) const { return memory_.block(block); }
  BlockWord word(BlockId block) const { return view(block).word(); }
  bool is_used(std::uint32_t slot) const { return owners_[slot].use != SlotOwner::Use::vacant; }
  std::uint32_t used_slots() const {
    std::uint32_t mask = 0;
    for (std::uint32_t slot = 0; slot < kMaxProcesses; ++slot)
      if (is_used(slot)) mask |= 1u << slot;
    return mask;
  }

  // -- the control object

  /// If the header or its copy is corrupt: overwrites it with the other, whose checksum fits.
  void mend_header() {
    ControlBlock& pool = memory_.control();
    if (memory_.check_header()) return;
    const auto is_sound = [this](const PoolHeader& header) {
      return header.checksum == checksum_of(header) && header.geometry == memory_.geometry();
    };
    if (is_sound(pool.header))
      pool.copy = pool.header;
    else if (is_sound(pool.copy))
      pool.header = pool.copy;
    pool.formatted.store(kFormatted, std::memory_order_release);
    ++report_.fields;
  }

  /// Repairs heads, tail and ring of the release order. A head never exceeds the tail unless one of
  /// them is corrupt. A tail that is lower than a head has lost a bit, and is raised to the highest
  /// head. An implausibly high head is set to 1, and an implausibly high tail to the highest head.
  void mend_order(Tier tier) {
    TierControl& order = control(tier);
    std::uint64_t head = 1;
    for (LaneControl& lane : order.lanes) {
      if (lane.head.load(relaxed) >= kImplausible) {
        lane.head.store(1, relaxed);
        ++report_.fields;
      }
      head = std::max(head, lane.head.load(relaxed));
    }
    if (order.tail.load(relaxed) >= kImplausible) {
      order.tail.store(head, relaxed);
      ++report_.fields;
    }
    std::uint64_t tail = order.tail.load(relaxed);
    if (tail < head) ++report_.fields;
    while (tail < head && !order.tail.compare_exchange_weak(tail, head, relaxed)) {
    }
    const auto& layout = memory_.tier_layout(tier);
    auto* ring = memory_.ring(tier);
    for (std::size_t i = 0; i < layout.ring_slots; ++i) {
      std::uint32_t block = ring[i].load(relaxed);
      if (block != 0 && block - layout.first_block >= layout.blocks)
        report_.hints_dropped += ring[i].compare_exchange_strong(block, 0, relaxed);
    }
  }

  /// Repairs the counter of serials. If at least two published blocks have serials that are not
  /// below the counter, the counter has lost a bit, and is raised. If only one block has, that
  /// block's descriptor is corrupt, and mend_identities() retires the block.
  void mend_serials() {
    auto& next = memory_.control().next_serial;
    std::uint64_t last = 0;
    std::size_t later = 0;
    for (std::uint32_t id = 1; id < memory_.geometry().total_blocks(); ++id) {
      if (!word(BlockId{id}).is_ready()) continue;
      const std::uint64_t serial = view(BlockId{id}).serial();
      if (serial >= kImplausible) continue;
      last = std::max(last, serial);
      later += serial >= next.load(relaxed);
    }
    std::uint64_t now = next.load(relaxed);
    const bool has_run_away = now >= kImplausible;
    if (!has_run_away && later < 2) return;
    while ((has_run_away ? now > last + 1 : now <= last) &&
           !next.compare_exchange_weak(now, last + 1, relaxed)) {
    }
    ++report_.fields;
  }

  /// At least two blocks behind later roots: the number has lost a bit. With it raised, some
  /// contents are perhaps found no more.
  void mend_resets() {
    ControlBlock& control = memory_.control();
    const Resets now = memory_.resets();
    Resets last = now;
    std::size_t later = 0;
    for (std::uint32_t id = 1; id < memory_.geometry().total_blocks(); ++id) {
      const std::uint64_t parent = view(BlockId{id}).parent_uid();
      if (!word(BlockId{id}).is_ready() || parent < kRootUid || resets_of(parent) <= now) continue;
      last = std::max(last, resets_of(parent));
      ++later;
    }
    if (later > 1) {
      control.resets.store(last.value, relaxed);
      ++report_.fields;
    }
    const std::uint64_t next = control.next_serial.load(relaxed);
    if (!memory_.is_forgotten(next)) return;
    control.first_uid.store(next, relaxed);
    ++report_.fields;
  }

  void mend_slots() {
    for (std::uint32_t slot = 0; slot < kMaxProcesses; ++slot) {
      const SlotOwner& owner = owners_[slot];
      auto& pid = memory_.control().processes[slot].pid;
      if (owner.use == SlotOwner::Use::unswept) continue;  // the reaper makes it vacant
      const bool is_wrong = owner.use == SlotOwner::Use::vacant
                                ? pid.load(relaxed) != 0
                                : owner.pid != 0 && pid.load(relaxed) != owner.pid;
      if (!is_wrong) continue;
      pid.store(owner.use == SlotOwner::Use::vacant ? 0 : owner.pid, std::memory_order_release);
      ++report_.fields;
    }
  }

  // -- the blocks

  void mend_words() {
    const EvictionPolicy policy = memory_.geometry().eviction_policy;
    for (std::uint32_t id = 0; id < memory_.geometry().total_blocks(); ++id) {
      const BlockId block{id};
      if (const std::uint64_t stray = word(block).stray_bits(policy); stray != 0) {
        view(block).clear_bits(stray);
        ++report_.fields;
      }
      const BlockWord now = word(block);
      if (block == kNullBlock) {
        if (now.state() == BlockState::retired && now.holders() == 0) continue;
        view(block).set_word(kNullBlockWord);
        ++report_.fields;
      } else if (now.state() == BlockState::retired && now.holders() == 0) {
        view(block).forget_identity();
      } else if (!Soundness::word_faults(block, now, ~0u, policy).empty()) {
        retire(block, now);
      }
    }
  }

  /// Releases the blocks that are held by slots without a process.
  void reap_strangers() {
    const std::uint32_t strangers = ~used_slots();
    std::uint32_t found = 0;
    for (std::uint32_t id = 1; id < memory_.geometry().total_blocks(); ++id) {
      const std::uint32_t mask = word(BlockId{id}).holders() & strangers;
      report_.holders += mask != 0;
      found |= mask;
    }
    for (std::uint32_t slot = 0; slot < kMaxProcesses; ++slot)
      if ((found >> slot & 1) != 0) reap(memory_, ProcessSlot{slot});
  }

  /// Retires published blocks with faults. Goes by ascending uid, so that parents come before their
  /// children: a child is compared with its parent only if the parent was not retired. Repeats
  /// until no fault is found, because a retired block may have hidden another block with the same
  /// uid.
  void mend_identities() {
    for (std::size_t before = ~std::size_t{0}; before != report_.retired;) {
      before = report_.retired;
      Soundness blocks(memory_);
      std::vector<BlockId> order = blocks.ready();
      std::stable_sort(order.begin(), order.end(),
                       [&](BlockId a, BlockId b) { return view(a).uid() < view(b).uid(); });
      for (const BlockId block : order) {
        const BlockWord seen = word(block);
        if (seen.is_ready() && !blocks.identity_faults(block).empty() &&
            word(block).generation() == seen.generation())
          retire(block, seen);
      }
    }
  }

  /// Retires a block for good, whether a process holds it or not. One atomic instruction does it.
  /// The rest only removes the hint and the identity; if this process is killed before that, the
  /// next repair does it.
  void retire(BlockId block, BlockWord seen) {
    if (!view(block).retire(seen)) return;
    index_.erase(view(block).name(), block);
    if (seen.is_ready())
      EvictionJournal(memory_).note(Departure::retired, ProcessSlot{kMaxProcesses}, {&block, 1});
    view(block).forget_identity();
    ++report_.retired;
  }

  // -- hints

  /// Removes bad hints from the index. A process inserts a hint after its block has become ready,
  /// and removes it after the block has been taken. So a hint that does not fit its block is stale,
  /// whatever other processes do meanwhile.
  void drop_hints() {
    is_hinted_.assign(memory_.geometry().total_blocks(), false);
    for (std::size_t b = 0; b < memory_.layout().index_buckets; ++b) {
      for (auto& way : memory_.index()[b].way) {
        std::uint64_t hint = way.load(std::memory_order_acquire);
        const BlockId block = PrefixIndex::block_of(hint);
        if (block == kNullBlock) continue;
        const bool is_good = memory_.has_block(block) && !is_hinted_[block.value] &&
                             word(block).is_ready() && index_.leads_to(b, hint, view(block).name());
        if (is_good)
          is_hinted_[block.value] = true;
        else
          report_.hints_dropped += way.compare_exchange_strong(
              hint, PrefixIndex::without_hint(hint), std::memory_order_acq_rel);
      }
    }
  }

  void restore_hints() {
    for (std::uint32_t id = 1; id < memory_.geometry().total_blocks(); ++id) {
      const BlockId block{id};
      const BlockWord before = word(block);
      if (is_hinted_[id] || !before.is_ready()) continue;
      const Hash128 name = view(block).name();
      std::atomic_thread_fence(std::memory_order_acquire);
      const auto is_same = [&] { return word(block).is_same_generation(before); };
      if (!is_same() || !index_.offer(name, block)) continue;
      ++report_.hints_restored;
      if (!is_same()) index_.erase(name, block);  // it was evicted meanwhile
    }
  }

  void mend_ends(Tier tier) {
    const auto& layout = memory_.tier_layout(tier);
    const auto cut = [this](auto* words, std::size_t bits) {
      if (bits % 64 == 0) return;
      const std::uint64_t beyond = ~0ull << bits % 64;
      report_.fields +=
          (words[bits / 64].fetch_and(~beyond, std::memory_order_seq_cst) & beyond) != 0;
    };
    cut(memory_.bitmap(tier), layout.blocks);
    cut(memory_.summary(tier), layout.bitmap_groups);
  }

  /// Gives new stamps to published blocks whose stamps were never drawn: no scan would find these
  /// blocks when they are idle.
  void restamp(Tier tier) {
    const Soundness blocks(memory_);
    std::vector<BlockId> lost;
    for (const BlockId block : blocks.ready())
      if (memory_.tier_of(block) == tier && blocks.has_future_stamp(block)) lost.push_back(block);
    std::stable_sort(lost.begin(), lost.end(),
                     [&](BlockId a, BlockId b) { return view(a).stamp() < view(b).stamp(); });
    IdleOrder idle(memory_, tier);
    idle.stamp(lost);
    idle.settle(lost);
    report_.restamped += lost.size();
  }

  void count_retired(Tier tier) const {
    const auto& layout = memory_.tier_layout(tier);
    std::uint32_t retired = 0;
    for (std::uint32_t i = 0; i < layout.blocks; ++i) {
      const BlockId block{layout.first_block + i};
      retired += block != kNullBlock && word(block).state() == BlockState::retired;
    }
    control(tier).retired.store(retired, relaxed);
  }

  const PoolMemory& memory_;
  const SlotOwners& owners_;
  PrefixIndex index_;
  RepairReport report_;
  std::vector<bool> is_hinted_;
};

}  // namespace

RepairReport repair(const PoolMemory& memory, const SlotOwners& owners) {
  return Repair(memory, owners).run();
}

}  // namespace kvhive
