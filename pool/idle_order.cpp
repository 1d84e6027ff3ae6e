#include "pool/idle_order.hpp"

#include <algorithm>

#include "base/kill_point.hpp"
#include "base/prefetch.hpp"

namespace kvhive {

IdleOrder::IdleOrder(const PoolMemory& memory, Tier tier)
    : descriptors_(memory.descriptors()),
      layout_(memory.tier_layout(tier)),
      control_(&memory.control().tiers[std::size_t(tier)]),
      ring_(memory.ring(tier)),
      ring_mask_(layout_.ring_slots - 1) {}

void IdleOrder::stamp(std::span<const BlockId> blocks) {
  if (blocks.empty()) return;
  const std::uint64_t first = draw(blocks.size());
  std::uint64_t stamp = first;
  for (const BlockId block : blocks) place(block, stamp++);
  // If this process was stopped until the ring had wrapped around, it has overwritten newer hints.
  if (!is_overwritten(first)) return;
  KV_KILL_POINT("stamp.overtaken");
  invalidate(*control_);
}

std::uint64_t IdleOrder::draw(std::size_t count) {
  KV_KILL_POINT("stamp.before_draw");
  const std::uint64_t first = control_->tail.fetch_add(count, std::memory_order_relaxed);
  KV_KILL_POINT("stamp.drawn");
  return first;
}

void IdleOrder::place(BlockId block, std::uint64_t stamp) {
  BlockView(descriptors_[block.value]).set_stamp(stamp);
  KV_KILL_POINT("stamp.before_hint");
  ring_[stamp & ring_mask_].store(block.value, std::memory_order_release);
  KV_KILL_POINT("stamp.hinted");
}

/// Whether the ring has wrapped around since `position` was drawn.
bool IdleOrder::is_overwritten(std::uint64_t position) const {
  return control_->tail.load(std::memory_order_acquire) > position + layout_.ring_slots;
}

void IdleOrder::settle(std::span<const BlockId> blocks) {
  for (const BlockId block : blocks) {
    while (true) {
      const std::uint64_t stamp = BlockView(descriptors_[block.value]).stamp();
      const std::uint64_t head = control_->head.load(std::memory_order_seq_cst);
      if (head <= stamp) break;
      BlockWord word;
      if (!is_current(stamp, block, word)) break;
      KV_KILL_POINT("settle.passed_by");
      // The head never exceeds the tail unless one of them is corrupt. If it does, the tail is
      // raised to the head at once; otherwise this loop would raise it one stamp at a time.
      std::uint64_t tail = control_->tail.load(std::memory_order_relaxed);
      while (tail < head && !control_->tail.compare_exchange_weak(tail, head)) {
      }
      this->stamp({&block, 1});
    }
  }
}

void IdleOrder::restore(std::span<const BlockId> blocks) {
  for (const BlockId block : blocks) {
    if (block.value - layout_.first_block >= layout_.blocks) continue;  // of the other tier
    const std::uint64_t stamp = BlockView(descriptors_[block.value]).stamp();
    BlockWord word;
    if (control_->head.load(std::memory_order_seq_cst) <= stamp || !is_current(stamp, block, word))
      continue;
    invalidate(*control_);
    return;
  }
}

bool IdleOrder::is_current(std::uint64_t stamp, BlockId block, BlockWord& word) const {
  word = {};
  // The id may come from the ring, and the ring may be corrupt, so its range is checked.
  if (block.value - layout_.first_block >= layout_.blocks || block == kNullBlock) return false;
  const BlockView view(descriptors_[block.value]);
  word = view.word();
  return word.is_idle() && view.stamp() == stamp;
}

void IdleOrder::oldest(std::size_t count, std::vector<Candidate>& out) {
  catch_up();
  const std::size_t wanted = out.size() + count;
  take_from_run(wanted, out);
  take_from_ring(wanted, out);
}

/// Scans if the ring has lost hints: because of a crash (the epoch has changed), or because it has
/// wrapped around.
void IdleOrder::catch_up() {
  // The tail is read first: if this process is interrupted in between, the ring looks less full
  // than it is, not fuller.
  const std::uint64_t tail = control_->tail.load(std::memory_order_acquire);
  const std::uint64_t head = control_->head.load(std::memory_order_relaxed);
  if (tail > head + layout_.ring_slots) {
    KV_KILL_POINT("order.gone_round");
    advance_head(tail);
    KV_KILL_POINT("order.head_at_tail");
    invalidate(*control_);
  }
  const std::uint64_t epoch = control_->epoch.load(std::memory_order_acquire);
  if (epoch == epoch_) return;
  epoch_ = epoch;
  collect(control_->head.load(std::memory_order_relaxed));
}

void IdleOrder::scan() { collect(control_->tail.load(std::memory_order_relaxed)); }

void IdleOrder::collect(std::uint64_t limit) {
  run_ = idle_before(limit);
  run_next_ = run_cursor_ = 0;
  run_limit_ = limit;
  ring_cursor_ = 0;
}

std::vector<IdleOrder::Stamped> IdleOrder::idle_before(std::uint64_t limit) const {
  std::vector<Stamped> found;
  for (std::uint32_t i = 0; i < layout_.blocks; ++i) {
    const BlockId block{layout_.first_block + i};
    const std::uint64_t stamp = BlockView(descriptors_[block.value]).stamp();
    BlockWord word;
    if (stamp < limit && is_current(stamp, block, word)) found.push_back({stamp, block});
  }
  std::sort(found.begin(), found.end(),
            [](const Stamped& a, const Stamped& b) { return a.stamp < b.stamp; });
  return found;
}

void IdleOrder::take_from_run(std::size_t wanted, std::vector<Candidate>& out) {
  for (; out.size() < wanted && run_cursor_ < run_.size(); ++run_cursor_) {
    const auto [stamp, block] = run_[run_cursor_];
    BlockWord word;
    if (is_current(stamp, block, word)) out.push_back({block, word});
  }
}

void IdleOrder::take_from_ring(std::size_t wanted, std::vector<Candidate>& out) {
  // Descriptors are at random places: start their cache misses this many hints ahead.
  constexpr std::uint64_t kAhead = 16;
  std::uint64_t tail = control_->tail.load(std::memory_order_acquire);
  // The last scan has sorted the blocks with stamps below run_limit_ into run_. As long as some of
  // them are left, the ring is read from run_limit_ on only, so that no block is taken twice.
  const std::uint64_t floor = run_next_ < run_.size() ? run_limit_ : 0;
  ring_cursor_ = std::max({ring_cursor_, floor, control_->head.load(std::memory_order_relaxed)});
  // Reads each slot of the ring at most once, even if the tail is corrupt.
  tail = std::min(tail, ring_cursor_ + layout_.ring_slots);
  for (; out.size() < wanted && ring_cursor_ < tail; ++ring_cursor_) {
    prefetch(&ring_[(ring_cursor_ + 4 * kAhead) & ring_mask_]);
    const std::uint32_t ahead =
        ring_[(ring_cursor_ + kAhead) & ring_mask_].load(std::memory_order_relaxed);
    if (ahead - layout_.first_block < layout_.blocks) prefetch_to_write(&descriptors_[ahead]);
    const BlockId block{ring_[ring_cursor_ & ring_mask_].load(std::memory_order_acquire)};
    BlockWord word;
    if (is_current(ring_cursor_, block, word)) out.push_back({block, word});
  }
}

void IdleOrder::commit() {
  const bool run_was_in_use = run_next_ < run_.size();
  run_next_ = run_cursor_;
  if (run_was_in_use) {
    // This time the ring was read only from run_limit_ on. Next time it is read from its head on.
    ring_cursor_ = 0;
  } else {
    const std::uint64_t moved_from = advance_head(ring_cursor_);
    rehint_passed(moved_from, ring_cursor_);
  }
}

/// Gives new stamps to blocks that have become idle since this process read their hints: another
/// process was just releasing such a block, or had pinned it only for a short time (cancel). If
/// that process read the head before this process moved it, it does not know that the hint is lost,
/// so this process has to write a new one.
void IdleOrder::rehint_passed(std::uint64_t from, std::uint64_t to) {
  // This process has moved the head and now reads words; a releasing process changes the word and
  // then reads the head (settle()). Because of the fence, at least one of the two sees the other's
  // change.
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (to - from > layout_.ring_slots) from = to - layout_.ring_slots;  // only if corrupt
  for (std::uint64_t position = from; position < to; ++position) {
    const BlockId block{ring_[position & ring_mask_].load(std::memory_order_acquire)};
    BlockWord word;
    if (!is_current(position, block, word)) continue;
    KV_KILL_POINT("rehint.is_idle");
    stamp({&block, 1});
    KV_KILL_POINT("rehint.before_settle");
    // Another process may have moved the head past the new stamp before its hint was written.
    settle({&block, 1});
  }
  if (from < to && is_overwritten(from)) invalidate(*control_);
}

void IdleOrder::rollback() {
  run_cursor_ = run_next_;
  ring_cursor_ = 0;  // the next oldest() starts at the head
}

/// Moves the head to `position`, unless it is there or further on already. Returns where the head
/// was, at most `position`.
std::uint64_t IdleOrder::advance_head(std::uint64_t position) {
  KV_KILL_POINT("order.before_head");
  std::uint64_t head = control_->head.load(std::memory_order_relaxed);
  while (head < position &&
         !control_->head.compare_exchange_weak(head, position, std::memory_order_seq_cst)) {
  }
  KV_KILL_POINT("order.head_moved");
  return std::min(head, position);
}

void IdleOrder::invalidate(TierControl& control) {
  KV_KILL_POINT("order.before_epoch");
  control.epoch.fetch_add(1, std::memory_order_acq_rel);
  KV_KILL_POINT("order.epoch");
}

std::vector<BlockId> IdleOrder::order() const {
  std::vector<BlockId> order;
  for (const auto& [stamp, block] : idle_before(~0ull)) order.push_back(block);
  return order;
}

}  // namespace kvhive
