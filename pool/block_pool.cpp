#include "pool/block_pool.hpp"

#include <algorithm>

#include "base/check.hpp"

namespace kvhive {

BlockPool::BlockPool(const PoolMemory& memory, ProcessSlot slot, Scrub scrub, EraseOnDevice erase,
                     ModelId model)
    : memory_(memory),
      model_(memory.geometry()[model]),
      slot_(slot),
      self_(slot),
      hit_mark_(memory.geometry().eviction_policy == EvictionPolicy::second_chance ? BlockWord::kHit
                                                                                   : 0),
      scrub_(scrub),
      erase_(std::move(erase)),
      index_(memory.index(), memory.layout().index_buckets),
      journal_(memory),
      lives_(memory),
      counters_(&memory.control().processes[slot.value].counters),
      lanes_(memory, slot, model),
      references_(memory.geometry().total_blocks()),
      first_serial_(memory.control().next_serial.load(std::memory_order_relaxed)) {
  KV_CHECK(slot.value < kMaxProcesses, slot.value);
  KV_CHECK(model.value < memory.geometry().model_count, model.value);
  KV_CHECK(memory.is_mapped(Tier::device) || erase_ || scrub == Scrub::never);
  for (const Tier t : {Tier::device, Tier::host})
    tiers_.push_back({FreeBlocks(memory, t), IdleOrder(memory, t)});
}

Prefix BlockPool::root(DomainId domain, GroupId group, std::uint32_t depth, Resets resets) {
  return {domain, root_uid(domain, group, resets), depth, group};
}

std::uint64_t BlockPool::uid_of(BlockId block) const {
  KV_CHECK(references_.has(block), block.value);
  return view(block).uid();
}

bool BlockPool::is_published(BlockId block) const {
  const BlockWord word = view(block).word();
  return references_.has(block) && word.is_ready() && word.is_held_by(self_);
}

// -- fork and copy on write -----------------------------------------------------------------------

void BlockPool::fork(std::span<const BlockId> blocks) {
  for (const BlockId block : blocks) {
    KV_CHECK(references_.has(block), block.value);
    references_.add(block);
  }
}

Expected<CopyOnWrite> BlockPool::make_writable(BlockId block) {
  KV_CHECK(references_.has(block), block.value);
  if (references_.count(block) == 1 && is_filling(block)) return CopyOnWrite{block, block};
  auto fresh = allocate(memory_.tier_of(block), 1, domain_of(block));
  if (!fresh) return forward_error(fresh);
  return CopyOnWrite{block, fresh->front()};
}

// -- how much room there is -----------------------------------------------------------------------

std::size_t BlockPool::capacity(Tier t) const {
  const std::size_t blocks = memory_.tier_layout(t).blocks - (t == Tier::device ? 1 : 0);
  const std::size_t retired =
      memory_.control().tiers[std::size_t(t)].retired.load(std::memory_order_relaxed);
  return blocks - std::min(retired, blocks);
}

/// Computes with unsigned numbers, which wrap: with a corrupt counter, signed numbers could
/// overflow.
std::size_t BlockPool::available(Tier t) const {
  const ControlBlock& control = memory_.control();
  const auto correction = static_cast<std::uint64_t>(
      control.tiers[std::size_t(t)].used_correction.load(std::memory_order_relaxed));
  const auto used =
      static_cast<std::int64_t>(static_cast<std::uint64_t>(counted_used(control, t)) + correction);
  const auto total = static_cast<std::int64_t>(capacity(t));
  return static_cast<std::size_t>(total - std::clamp<std::int64_t>(used, 0, total));
}

std::size_t BlockPool::capacity(Tier t, DomainId domain) const {
  return t == Tier::device ? lanes_.capacity(domain, capacity(t)) : capacity(t);
}

std::size_t BlockPool::available(Tier t, DomainId domain) const {
  return t == Tier::device ? lanes_.available(domain, available(t)) : available(t);
}

std::vector<BlockId> BlockPool::free_queue(Tier t) const {
  std::vector<BlockId> queue = tiers_[std::size_t(t)].free.order();
  const auto idle = tiers_[std::size_t(t)].idle.order();
  queue.insert(queue.end(), idle.begin(), idle.end());
  return queue;
}

}  // namespace kvhive
