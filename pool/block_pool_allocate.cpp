// Takes blocks for writing: free blocks first, then idle blocks, whose content is evicted.

#include <algorithm>
#include <string>

#include "base/kill_point.hpp"
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
  if (!take(tier, count, taken, evicted)) {
    free_taken(taken);
    if (evicted != nullptr) evicted->resize(evicted_before);
    return failure(Errc::pool_exhausted, "need " + std::to_string(count) + " " +
                                             std::string(to_string(tier)) + " blocks, " +
                                             std::to_string(available(tier)) + " of " +
                                             std::to_string(capacity(tier)) + " are free or idle");
  }
  std::span<Evicted> contents;
  if (evicted != nullptr) contents = std::span(*evicted).subspan(evicted_before);
  change_domains(taken, domain, contents);
  KV_KILL_POINT("allocate.before_statistics");
  bump((*counters_)["allocated_blocks"], count);
  KV_KILL_POINT("allocate.done");
  return taken;
}

/// Adds blocks to `taken`, to be filled by this process, until it has `count` blocks. False if
/// there are too few; then `taken` has the blocks that there were.
bool BlockPool::take(Tier t, std::size_t count, std::vector<BlockId>& taken,
                     std::vector<Evicted>* evicted) {
  const auto try_once = [&] {
    return take_free(t, count, taken) || take_idle(t, count, taken, evicted);
  };
  const auto may_be_more = [&] { return available(t) >= count - taken.size(); };
  return try_once() || (may_be_more() && tier(t).free.find_lost() && try_once());
}

bool BlockPool::take_free(Tier t, std::size_t count, std::vector<BlockId>& taken) {
  FreeBlocks& free = tier(t).free;
  while (taken.size() < count) {
    const auto candidate = free.next();
    if (!candidate) return false;
    const auto [block, seen] = *candidate;
    if (keep_if_referenced(block, seen)) continue;
    KV_KILL_POINT("allocate.before_cas");
    if (!view(block).change(seen, seen.taken_by(self_))) continue;
    KV_KILL_POINT("allocate.after_cas");
    free.taken(block);
    begin_filling(block, t);
    taken.push_back(block);
  }
  return true;
}

/// Evicts idle blocks and adds them to `taken` until it has `count` blocks. Evicts nothing unless
/// it has seen enough idle blocks.
bool BlockPool::take_idle(Tier t, std::size_t count, std::vector<BlockId>& taken,
                          std::vector<Evicted>* evicted) {
  IdleOrder& idle = tier(t).idle;
  while (taken.size() < count) {
    if (!collect_idle(t, count - taken.size())) {
      idle.rollback();
      return false;
    }
    const std::size_t before = taken.size();
    evict_candidates(taken, evicted);
    KV_KILL_POINT("evict.before_journal");
    journal_.note(Departure::evicted, slot_, std::span(taken).subspan(before));
    KV_KILL_POINT("evict.before_commit");
    idle.commit();
    KV_KILL_POINT("evict.committed");
  }
  return true;
}

/// Collects the `count` oldest idle blocks as candidates. If the hints name fewer than the counters
/// say there are, all stamps are scanned.
bool BlockPool::collect_idle(Tier t, std::size_t count) {
  IdleOrder& idle = tier(t).idle;
  candidates_.clear();
  idle.oldest(count, candidates_);
  if (candidates_.size() < count && available(t) >= count) {
    idle.rollback();
    idle.scan();
    candidates_.clear();
    idle.oldest(count, candidates_);
  }
  return candidates_.size() >= count;
}

/// Evicts the candidates, except those that another process takes first.
void BlockPool::evict_candidates(std::vector<BlockId>& taken, std::vector<Evicted>* evicted) {
  const auto prefetch_ahead = [&](std::size_t i) {
    if (i >= candidates_.size()) return;
    const BlockId block = candidates_[i].block;
    references_.prefetch(block);
    index_.prefetch_to_write(view(block).name());
  };
  const auto try_one = [&](std::size_t i) {
    prefetch_ahead(i + kAhead);
    const bool is_taken = evict(candidates_[i].block, candidates_[i].word, evicted);
    if (is_taken) taken.push_back(candidates_[i].block);
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
bool BlockPool::evict(BlockId block, BlockWord seen, std::vector<Evicted>* evicted) {
  if (keep_if_referenced(block, seen)) return false;
  const BlockView b = view(block);
  KV_KILL_POINT("evict.before_cas");
  if (!b.change(seen, seen.taken_by(self_))) return false;
  KV_KILL_POINT("evict.after_cas");
  index_.erase(b.name(), block);
  if (evicted != nullptr) evicted->push_back({block, b.name(), b.uid(), b.domain(), {}});
  begin_filling(block, memory_.tier_of(block));
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
void BlockPool::begin_filling(BlockId block, Tier t) {
  KV_KILL_POINT("take_over.before_nameless");
  view(block).forget_uid();
  references_.set_first(block);
  KV_KILL_POINT("take_over.before_count");
  count_used(t, +1);
  KV_KILL_POINT("take_over.counted");
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
