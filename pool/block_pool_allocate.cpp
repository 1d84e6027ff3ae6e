// Takes blocks for writing: free blocks first, then idle blocks, whose content is evicted.

#include <algorithm>
#include <array>
#include <string>

#include "base/kill_point.hpp"
#include "base/stop_watch.hpp"
#include "pool/block_pool.hpp"
#include "pool/scrub.hpp"

namespace kvhive {
namespace {

/// How many blocks ahead to prefetch: far enough that a block's data has arrived when it is needed,
/// and not more cache misses than the CPU can have under way at the same time.
constexpr std::size_t kAhead = 16;

/// After a lost exchange, skip this many candidates and come back to them at the end: another
/// process is taking them one after the other, and if both processes took neighbouring blocks, each
/// would wait for the other's cache lines.
constexpr std::size_t kSkippedAtOnce = 128;

}  // namespace

Expected<std::vector<BlockId>> BlockPool::allocate(Tier tier, std::size_t count, DomainId domain,
                                                   std::vector<Evicted>* evicted) {
  std::vector<BlockId> taken;
  taken.reserve(count);
  const std::size_t evicted_before = evicted != nullptr ? evicted->size() : 0;
  Demand demand{tier, count, domain, taken, evicted};
  if (!take(demand)) {
    free_taken(taken);
    if (evicted != nullptr) evicted->resize(evicted_before);
    return failure(Errc::pool_exhausted,
                   "need " + std::to_string(count) + " " + std::string(to_string(tier)) +
                       " blocks, " + std::to_string(available(tier, domain)) + " of " +
                       std::to_string(capacity(tier)) +
                       " are free or idle, and within what the domain may have");
  }
  std::span<Evicted> contents;
  if (evicted != nullptr) contents = std::span(*evicted).subspan(evicted_before);
  change_domains(taken, domain, contents);
  KV_KILL_POINT("allocate.before_statistics");
  if (lives_.are_measured()) [[unlikely]]
    renew_lives(taken);
  bump((*counters_)["allocated_blocks"], count);
  KV_KILL_POINT("allocate.done");
  return taken;
}

/// Adds blocks to `taken`, to be filled by this process, until it has `count` blocks. False if
/// there are too few; then `taken` has the blocks that there were.
bool BlockPool::take(Demand& demand) {
  const auto may_be_more = [&] {
    return available(demand.tier, demand.domain) >= demand.missing();
  };
  return take_within_limits(demand) ||
         (may_be_more() && tier(demand.tier).free.find_lost() != 0 && take_within_limits(demand));
}

/// What the domain would have beyond its maximum, it takes from its own idle blocks.
bool BlockPool::take_within_limits(Demand& demand) {
  if (demand.tier == Tier::device && lanes_.limits_of(demand.domain).max != 0) [[unlikely]] {
    // Asked first, because nothing may be evicted unless there is enough for all.
    if (available(demand.tier, demand.domain) < demand.missing()) return false;
    const std::size_t count = demand.count;
    demand.count = demand.taken.size() + lanes_.beyond_maximum(demand.domain, demand.missing());
    const bool has_own = take_idle(demand, Reach::own);
    demand.count = count;
    if (!has_own) return false;
  }
  return take_free(demand) || take_idle(demand);
}

bool BlockPool::take_free(Demand& demand) {
  FreeBlocks& free = tier(demand.tier).free;
  while (demand.missing() != 0) {
    const auto candidate = free.next();
    if (!candidate) return false;
    const auto [block, seen] = *candidate;
    if (keep_if_referenced(block, seen)) continue;
    KV_KILL_POINT("allocate.before_cas");
    if (!view(block).change(seen, seen.taken_by(self_))) continue;
    KV_KILL_POINT("allocate.after_cas");
    free.taken(block);
    begin_filling(block, demand);
    demand.taken.push_back(block);
  }
  return true;
}

/// Evicts idle blocks and adds them to `taken` until it has `count` blocks. Evicts nothing unless
/// it has seen enough idle blocks.
bool BlockPool::take_idle(Demand& demand, Reach reach) {
  IdleOrder& idle = tier(demand.tier).idle;
  while (demand.missing() != 0) {
    if (!collect_idle(demand, reach)) {
      idle.rollback();
      return false;
    }
    const std::size_t before = demand.taken.size();
    evict_candidates(demand);
    KV_KILL_POINT("evict.before_journal");
    journal_.note(Departure::evicted, slot_, std::span(demand.taken).subspan(before));
    KV_KILL_POINT("evict.before_commit");
    idle.commit();
    KV_KILL_POINT("evict.committed");
    prefetch_coming(demand);
  }
  return true;
}

/// Many blocks' cache misses pass at the same time (evict_candidates()). Who takes them one by one,
/// as decoding does, would wait for each: those of the next block but one begin now.
void BlockPool::prefetch_coming(const Demand& demand) {
  const IdleOrder& idle = tier(demand.tier).idle;
  if (demand.count >= kAhead || idle.lanes() != 1) return;
  for (std::size_t ahead = 1; ahead <= demand.count; ++ahead) {
    const BlockId block = idle.coming(ahead);
    if (memory_.has_block(block)) prefetch_to_evict(block);
  }
}

void BlockPool::prefetch_to_evict(BlockId block) const {
  references_.prefetch(block);
  index_.prefetch_to_write(view(block).name());
}

/// Collects the oldest idle blocks that the allocation may evict as candidates, as many as it still
/// needs. If the hints name fewer than the counters say there are, all stamps are scanned. Chances
/// are given where there are enough blocks, and not after a scan: an allocation does not fail for
/// lack of blocks that nobody has hit.
bool BlockPool::collect_idle(const Demand& demand, Reach reach) {
  IdleOrder& idle = tier(demand.tier).idle;
  const std::size_t count = demand.missing();
  const bool gives_chances = hit_mark_ != 0 && available(demand.tier, demand.domain) >= count;
  collect_oldest(demand, reach,
                 gives_chances ? IdleOrder::Chances::given : IdleOrder::Chances::withheld);
  if (candidates_.size() < count && available(demand.tier, demand.domain) >= count) {
    idle.rollback();
    idle.scan();
    collect_oldest(demand, reach, IdleOrder::Chances::withheld);
  }
  if (const std::size_t spared = idle.take_spared(); spared != 0)
    bump((*counters_)["spared_blocks"], spared);
  return candidates_.size() >= count;
}

void BlockPool::collect_oldest(const Demand& demand, Reach reach, IdleOrder::Chances chances) {
  IdleOrder& idle = tier(demand.tier).idle;
  const std::size_t count = demand.missing(), own = lanes_.of(demand.domain);
  candidates_.clear();
  if (idle.lanes() == 1) return idle.oldest(count, candidates_, 0, chances);
  if (reach == Reach::own) return idle.oldest(count, candidates_, own, chances);
  std::vector<std::size_t> most = lanes_.evictable(demand.domain, count);
  merge_lanes(idle, count, most, chances);
  // A domain's minimum protects it from others, not from itself.
  if (candidates_.size() < count)
    idle.oldest(count - candidates_.size(), candidates_, own, chances);
}

/// Collects up to `count` candidates, oldest first, of each lane at most so many.
void BlockPool::merge_lanes(IdleOrder& idle, std::size_t count, std::vector<std::size_t>& most,
                            IdleOrder::Chances chances) {
  std::array<std::uint64_t, kMostLanes> next{};
  const auto look = [&](std::size_t lane) {
    next[lane] = most[lane] != 0 ? idle.next_stamp(lane, chances) : IdleOrder::kNoStamp;
  };
  for (std::size_t lane = 0; lane < most.size(); ++lane) look(lane);
  while (candidates_.size() < count) {
    const auto oldest = std::min_element(next.begin(), next.begin() + std::ptrdiff_t(most.size()));
    if (*oldest == IdleOrder::kNoStamp) return;
    const auto lane = static_cast<std::size_t>(oldest - next.begin());
    idle.oldest(1, candidates_, lane, chances);
    --most[lane];
    look(lane);
  }
}

/// Evicts the candidates, except those that another process takes first.
void BlockPool::evict_candidates(Demand& demand) {
  const auto prefetch_ahead = [&](std::size_t i) {
    if (i < candidates_.size()) prefetch_to_evict(candidates_[i].block);
  };
  const auto try_one = [&](std::size_t i) {
    prefetch_ahead(i + kAhead);
    const bool is_taken = evict(demand, candidates_[i]);
    if (is_taken) demand.taken.push_back(candidates_[i].block);
    return is_taken;
  };
  for (std::size_t i = 0; i < kAhead; ++i) prefetch_ahead(i);
  skipped_.clear();
  for (std::size_t i = 0; i < candidates_.size(); ++i) {
    if (try_one(i)) continue;
    skipped_.push_back(i + 1);
    i += kSkippedAtOnce;
  }
  for (const std::size_t first : skipped_)
    for (std::size_t i = first; i < std::min(first + kSkippedAtOnce, candidates_.size()); ++i)
      if (view(candidates_[i].block).word() == candidates_[i].word) try_one(i);
}

/// Takes an idle block by one atomic exchange of its word, and then removes the block's hint from
/// the index. If the process is killed in between, the stale hint stays until a match reads and
/// drops it. False if another process has taken the block first.
bool BlockPool::evict(Demand& demand, Candidate candidate) {
  const auto [block, seen] = candidate;
  if (keep_if_referenced(block, seen)) return false;
  const BlockView b = view(block);
  KV_KILL_POINT("evict.before_cas");
  if (!b.change(seen, seen.taken_by(self_))) return false;
  KV_KILL_POINT("evict.after_cas");
  index_.erase(b.name(), block);
  lanes_.evicted(block, lanes_.of(b));
  if (demand.evicted != nullptr)
    demand.evicted->push_back({block, b.name(), b.uid(), b.domain(), {}});
  begin_filling(block, demand);
  bump((*counters_)["evicted_blocks"], 1u);
  KV_KILL_POINT("evict.done");
  return true;
}

/// Protects a block that looks free or idle although this process has references to it: corruption
/// has cleared this process's holder bit. Sets the bit again if the block is published, and retires
/// the block if not, so that no process writes what this process reads. False if this process has
/// no reference to the block.
bool BlockPool::keep_if_referenced(BlockId block, BlockWord seen) {
  if (!references_.has(block)) [[likely]]
    return false;
  const BlockWord kept = seen.is_ready() ? seen.pinned_by(self_) : seen.retired();
  // If the exchange fails, another process has taken the block already, and nothing can be done.
  static_cast<void>(view(block).change(seen, kept));
  return true;
}

/// Called when the block's word says that this process is filling it. Clears the block's uid at
/// once, so that no match finds the block if its word gets corrupted to "ready" before new content
/// is written.
void BlockPool::begin_filling(BlockId block, const Demand& demand) {
  KV_KILL_POINT("take_over.before_nameless");
  view(block).forget_uid();
  references_.set_first(block);
  KV_KILL_POINT("take_over.before_count");
  count_used(demand.tier, +1);
  lanes_.taken(block, demand.domain);
  KV_KILL_POINT("take_over.counted");
}

/// Called when the allocation has succeeded: one that fails ends no life.
void BlockPool::renew_lives(std::span<const BlockId> taken) const {
  constexpr std::uint64_t kMicrosecond = 1000;
  const std::uint64_t now = monotonic_ns();
  for (const BlockId block : taken) {
    if (!lives_.is_measured(block)) continue;
    const auto life = lives_.renew(block, now);
    if (!life) continue;
    counters_->observe("kv_block_lifetime_seconds", life->length / kMicrosecond);
    counters_->observe("kv_block_idle_before_evict_seconds", life->idle / kMicrosecond);
    for (const std::uint64_t gap : life->gaps())
      counters_->observe("kv_block_reuse_gap_seconds", gap / kMicrosecond);
  }
}

void BlockPool::free_taken(std::span<const BlockId> taken) {
  for (auto block = taken.rbegin(); block != taken.rend(); ++block) {
    references_.forget(*block);
    if (is_filling(*block)) free_block(*block);
  }
}

// -- changing a block's domain --------------------------------------------------------------------

/// Puts all blocks into `domain`, except the blocks of `evicted` if blocks are zeroed on a change
/// of domain: the caller may still need their bytes. `evicted` is in the order of `taken`.
void BlockPool::change_domains(std::span<const BlockId> taken, DomainId domain,
                               std::span<Evicted> evicted) {
  scratch_.clear();
  for (const BlockId block : taken) {
    const bool is_evicted = !evicted.empty() && evicted.front().block == block;
    if (is_evicted) {
      evicted.front().new_domain = domain;
      evicted = evicted.subspan(1);
      if (scrub_ == Scrub::on_domain_change) continue;
    }
    if (domain_of(block) == domain) [[likely]]
      continue;
    if (only_device_can_zero(block))
      scratch_.push_back(block);
    else
      change_domain(block, domain);
  }
  if (!scratch_.empty()) erase_(scratch_);
  for (const BlockId block : scratch_) change_domain(block, domain);
}

bool BlockPool::only_device_can_zero(BlockId block) const {
  return scrub_ == Scrub::on_domain_change && !memory_.is_mapped(memory_.tier_of(block));
}

void BlockPool::change_domain(BlockId block, DomainId domain) const {
  if (domain_of(block) == domain) [[likely]]
    return;
  if (scrub_ == Scrub::on_domain_change)
    kvhive::change_domain(memory_, block, domain);
  else
    view(block).set_domain(domain);
}

}  // namespace kvhive
