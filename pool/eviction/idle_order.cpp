#include "pool/eviction/idle_order.hpp"

#include <algorithm>

#include "base/kill_point.hpp"
#include "base/prefetch.hpp"

namespace kvhive {

IdleOrder::IdleOrder(const PoolMemory& memory, Tier tier)
    : descriptors_(memory.descriptors()),
      layout_(memory.tier_layout(tier)),
      control_(&memory.control().tiers[std::size_t(tier)]),
      ring_(memory.ring(tier)),
      ring_mask_(layout_.ring_slots - 1),
      lanes_(memory.geometry(), tier) {
  for (std::size_t lane = 0; lane < lanes_.count(); ++lane)
    cursors_.push_back({.lane = lane, .control = &control_->lanes[lane]});
}

/// The lane of a published block. It does not change while the block is published.
std::size_t IdleOrder::lane_of(BlockView block) const { return lanes_.of(block); }

LaneControl& IdleOrder::control_of(BlockId block) const {
  return control_->lanes[lane_of(BlockView(descriptors_[block.value]))];
}

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
  const LaneControl* lane = &control_->lanes[0];
  const bool is_one = cursors_.size() == 1;
  for (const BlockId block : blocks) {
    if (!is_one) lane = &control_of(block);
    while (true) {
      const std::uint64_t stamp = BlockView(descriptors_[block.value]).stamp();
      const std::uint64_t head = lane->head.load(std::memory_order_seq_cst);
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
    if (control_of(block).head.load(std::memory_order_seq_cst) <= stamp ||
        !is_current(stamp, block, word))
      continue;
    invalidate(*control_);
    return;
  }
}

/// Whether the block is idle and was released last with this stamp (and is of this lane). Asked for
/// each block that is evicted: out of line it made allocating and publishing 4 % slower.
[[gnu::always_inline]] inline bool IdleOrder::is_current(std::uint64_t stamp, BlockId block,
                                                         BlockWord& word, std::size_t lane) const {
  word = {};
  // The id may come from the ring, and the ring may be corrupt, so its range is checked.
  if (block.value - layout_.first_block >= layout_.blocks || block == kNullBlock) return false;
  const BlockView view(descriptors_[block.value]);
  word = view.word();
  return word.is_idle() && view.stamp() == stamp && (lane == kAnyLane || lane_of(view) == lane);
}

/// Moves the run's cursor to the next candidate. False if there is none. Inlined, like
/// find_in_ring(): a call for each candidate would cost a tenth of an allocation.
[[gnu::always_inline]] inline bool IdleOrder::find_in_run(Cursor& at, Candidate& found,
                                                          Chances chances) {
  for (; at.run_cursor < at.run.size(); ++at.run_cursor) {
    const auto [stamp, block] = at.run[at.run_cursor];
    BlockWord word;
    if (!is_current(stamp, block, word)) continue;
    if (word.is_hit() && chances == Chances::given && spare({block, word})) continue;
    found = {block, word};
    return true;
  }
  return false;
}

/// Moves the ring's cursor to the next candidate before `end`. False if there is none.
[[gnu::always_inline]] inline bool IdleOrder::find_in_ring(Cursor& at, std::uint64_t end,
                                                           Candidate& found, Chances chances) {
  const std::size_t lane = cursors_.size() == 1 ? kAnyLane : at.lane;
  for (; at.ring_cursor < end; ++at.ring_cursor) {
    prefetch(&ring_[(at.ring_cursor + 4 * kAhead) & ring_mask_]);
    const std::uint32_t ahead =
        ring_[(at.ring_cursor + kAhead) & ring_mask_].load(std::memory_order_relaxed);
    if (ahead - layout_.first_block < layout_.blocks) prefetch_to_write(&descriptors_[ahead]);
    const BlockId block{ring_[at.ring_cursor & ring_mask_].load(std::memory_order_acquire)};
    BlockWord word;
    if (!is_current(at.ring_cursor, block, word, lane)) continue;
    if (word.is_hit() && chances == Chances::given && spare({block, word})) continue;
    found = {block, word};
    return true;
  }
  return false;
}

/// Gives an idle block its second chance. True: it is not to be evicted now, because it has got
/// one, here or by another process, or has been pinned or taken meanwhile.
[[gnu::cold, gnu::noinline]] bool IdleOrder::spare(Candidate found) {
  KV_KILL_POINT("spare.before_cas");
  const BlockView block(descriptors_[found.block.value]);
  if (!block.change(found.word, found.word.spared())) return true;
  KV_KILL_POINT("spare.before_stamp");
  stamp({&found.block, 1});
  KV_KILL_POINT("spare.before_settle");
  settle({&found.block, 1});
  KV_KILL_POINT("spare.settled");
  ++spared_;
  return true;
}

void IdleOrder::oldest(std::size_t count, std::vector<Candidate>& out, std::size_t lane,
                       Chances chances) {
  Cursor& at = cursors_[lane];
  catch_up(at);
  const std::size_t wanted = out.size() + count;
  Candidate found;
  for (; out.size() < wanted && find_in_run(at, found, chances); ++at.run_cursor)
    out.push_back(found);
  const auto read_ring = [&](Chances in_ring) {
    const std::uint64_t end = begin_ring(at);
    for (; out.size() < wanted && find_in_ring(at, end, found, in_ring); ++at.ring_cursor)
      out.push_back(found);
  };
  const std::size_t spared_before = spared_;
  read_ring(chances);
  // All that is idle has been hit: those that have had their chance are at the ring's end now.
  if (out.size() < wanted && spared_ != spared_before) read_ring(Chances::withheld);
}

std::uint64_t IdleOrder::next_stamp(std::size_t lane, Chances chances) {
  Cursor& at = cursors_[lane];
  catch_up(at);
  Candidate found;
  if (find_in_run(at, found, chances)) return at.run[at.run_cursor].stamp;
  if (find_in_ring(at, begin_ring(at), found, chances)) return at.ring_cursor;
  if (find_in_ring(at, begin_ring(at), found, Chances::withheld)) return at.ring_cursor;
  return kNoStamp;
}

/// Scans if the ring has lost hints: because of a crash (the epoch has changed), or because it has
/// wrapped around since the head was moved last. A lane from which nothing was evicted for long is
/// always scanned, since other lanes' hints have overwritten its own.
void IdleOrder::catch_up(Cursor& at) {
  // Not between two calls of oldest(): the scan would find what was returned already.
  if (at.run_cursor != at.run_next || at.ring_cursor != 0) return;
  // The tail is read first: if this process is interrupted in between, the ring looks less full
  // than it is, not fuller.
  const std::uint64_t tail = control_->tail.load(std::memory_order_acquire);
  const std::uint64_t head = at.control->head.load(std::memory_order_relaxed);
  if (tail > head + layout_.ring_slots) {
    KV_KILL_POINT("order.gone_round");
    advance_head(*at.control, tail);
    KV_KILL_POINT("order.head_at_tail");
    at.control->epoch.fetch_add(1, std::memory_order_acq_rel);
    KV_KILL_POINT("order.lane_epoch");
  }
  // Both only grow, so their sum changes if one of them does.
  const std::uint64_t epoch = at.control->epoch.load(std::memory_order_acquire) +
                              control_->epoch.load(std::memory_order_acquire);
  if (epoch == at.epoch) return;
  at.epoch = epoch;
  collect(at, at.control->head.load(std::memory_order_relaxed));
}

void IdleOrder::scan() {
  for (Cursor& at : cursors_) collect(at, control_->tail.load(std::memory_order_relaxed));
}

void IdleOrder::collect(Cursor& at, std::uint64_t limit) {
  at.run = idle_before(limit, cursors_.size() == 1 ? kAnyLane : at.lane);
  at.run_next = at.run_cursor = 0;
  at.run_limit = limit;
  at.ring_cursor = 0;
}

std::vector<IdleOrder::Stamped> IdleOrder::idle_before(std::uint64_t limit,
                                                       std::size_t lane) const {
  std::vector<Stamped> found;
  for (std::uint32_t i = 0; i < layout_.blocks; ++i) {
    const BlockId block{layout_.first_block + i};
    const std::uint64_t stamp = BlockView(descriptors_[block.value]).stamp();
    BlockWord word;
    if (stamp < limit && is_current(stamp, block, word, lane)) found.push_back({stamp, block});
  }
  std::sort(found.begin(), found.end(),
            [](const Stamped& a, const Stamped& b) { return a.stamp < b.stamp; });
  return found;
}

/// Moves the ring's cursor to where the ring is read from. Returns where it ends.
std::uint64_t IdleOrder::begin_ring(Cursor& at) const {
  const std::uint64_t tail = control_->tail.load(std::memory_order_acquire);
  // The last scan has sorted the blocks with stamps below run_limit into the run. As long as some
  // of them are left, the ring is read from run_limit on only, so that no block is taken twice.
  const std::uint64_t floor = at.run_next < at.run.size() ? at.run_limit : 0;
  at.ring_cursor =
      std::max({at.ring_cursor, floor, at.control->head.load(std::memory_order_relaxed)});
  // Reads each slot of the ring at most once, even if the tail is corrupt.
  return std::min(tail, at.ring_cursor + layout_.ring_slots);
}

void IdleOrder::commit() {
  for (Cursor& at : cursors_) commit(at);
}

void IdleOrder::commit(Cursor& at) {
  const bool run_was_in_use = at.run_next < at.run.size();
  at.run_next = at.run_cursor;
  if (!run_was_in_use) {
    const std::uint64_t moved_from = advance_head(*at.control, at.ring_cursor);
    rehint_passed(at.lane, moved_from, at.ring_cursor);
  }
  // The next oldest() starts at the head. If the run was in use, the ring was read only from
  // run_limit on this time, and the head stays.
  at.ring_cursor = 0;
}

/// Gives new stamps to blocks that have become idle since this process read their hints: another
/// process was just releasing such a block, or had pinned it only for a short time (cancel). If
/// that process read the head before this process moved it, it does not know that the hint is lost,
/// so this process has to write a new one.
void IdleOrder::rehint_passed(std::size_t lane, std::uint64_t from, std::uint64_t to) {
  // This process has moved the head and now reads words; a releasing process changes the word and
  // then reads the head (settle()). Because of the fence, at least one of the two sees the other's
  // change.
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (to - from > layout_.ring_slots) from = to - layout_.ring_slots;  // only if corrupt
  for (std::uint64_t position = from; position < to; ++position) {
    const BlockId block{ring_[position & ring_mask_].load(std::memory_order_acquire)};
    BlockWord word;
    if (!is_current(position, block, word, lane)) continue;
    KV_KILL_POINT("rehint.is_idle");
    stamp({&block, 1});
    KV_KILL_POINT("rehint.before_settle");
    // Another process may have moved the head past the new stamp before its hint was written.
    settle({&block, 1});
  }
  if (from < to && is_overwritten(from)) invalidate(*control_);
}

void IdleOrder::rollback() {
  for (Cursor& at : cursors_) {
    at.run_cursor = at.run_next;
    at.ring_cursor = 0;  // the next oldest() starts at the head
  }
}

/// Moves the head to `position`, unless it is there or further on already. Returns where the head
/// was, at most `position`.
std::uint64_t IdleOrder::advance_head(LaneControl& control, std::uint64_t position) {
  KV_KILL_POINT("order.before_head");
  std::uint64_t head = control.head.load(std::memory_order_relaxed);
  while (head < position &&
         !control.head.compare_exchange_weak(head, position, std::memory_order_seq_cst)) {
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
