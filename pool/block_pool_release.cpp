// Drops references: a published block without a holder becomes idle, another block becomes free.

#include <string>
#include <unordered_map>

#include "base/kill_point.hpp"
#include "pool/block_pool.hpp"

namespace kvhive {

void BlockPool::release(std::span<const BlockId> blocks) {
  if (!drop_references(blocks)) return;
  // Unpublished blocks become free. Those at the end of the sequence are freed last, so that
  // allocate() takes them first.
  for (const BlockId block : blocks)
    if (!references_.has(block) && is_filling(block)) free_block(block);
}

Expected<void> BlockPool::try_release(std::span<const BlockId> blocks) {
  const std::size_t count = memory_.geometry().device_blocks + memory_.geometry().host_blocks;
  std::unordered_map<std::uint32_t, std::uint32_t> named;
  for (const BlockId block : blocks) {
    const bool is_known = block.value < count;
    const std::uint32_t held = is_known ? references_.count(block) : 0;
    if (++named[block.value] <= held) continue;
    return failure(Errc::not_held,
                   "block " + std::to_string(block.value) +
                       (is_known ? " is to be released " + std::to_string(named[block.value]) +
                                       " times, and this process holds it " + std::to_string(held) +
                                       " times; release each reference once"
                                 : " is none of the pool's " + std::to_string(count) + " blocks"));
  }
  release(blocks);
  return {};
}

/// Drops one reference to each block. For published blocks without a further reference, clears this
/// process's holder bit, the last block of the sequence first, so that the end of a sequence is
/// evicted before its start. Stamps are written before the holder bits are cleared, so that an idle
/// block always has a hint in the release order. Unpublished blocks keep their words; returns
/// whether there are any.
bool BlockPool::drop_references(std::span<const BlockId> blocks) {
  constexpr std::ptrdiff_t kAhead = 16;
  bool has_unpublished = false;
  for (const Tier t : {Tier::device, Tier::host}) {
    scratch_.clear();
    for (auto block = blocks.rbegin(); block != blocks.rend(); ++block) {
      if (blocks.rend() - block > kAhead) view(block[kAhead]).prefetch_to_write();
      if (memory_.tier_of(*block) != t) continue;
      if (references_.drop(*block) != 0) continue;
      if (view(*block).word().is_ready())
        scratch_.push_back(*block);
      else
        has_unpublished = true;
    }
    if (scratch_.empty()) continue;
    IdleOrder& idle = tier(t).idle;
    KV_KILL_POINT("release.before_stamp");
    idle.stamp(scratch_);
    KV_KILL_POINT("release.stamped");
    for (const BlockId block : scratch_) unpin(block);
    KV_KILL_POINT("release.before_settle");
    idle.settle(scratch_);
    KV_KILL_POINT("release.settled");
  }
  return has_unpublished;
}

/// Its rare case is the last thing that it does, so that it saves no registers: an atomic exchange
/// waits for all stores before it. Aligned, because where it began in the middle of a line,
/// releases took a tenth longer.
[[gnu::aligned(64)]] void BlockPool::unpin(BlockId block) {
  if (lanes_.count() != 1) [[unlikely]]
    return unpin_in_lane(block);
  KV_KILL_POINT("unpin.before_clear");
  const BlockWord before = view(block).unpin(self_);
  KV_KILL_POINT("unpin.cleared");
  if (before.holders() == self_.bit) count_used(memory_.tier_of(block), -1);
  KV_KILL_POINT("unpin.counted");
}

/// The same where blocks are counted by lane.
[[gnu::cold, gnu::noinline]] void BlockPool::unpin_in_lane(BlockId block) {
  const BlockView b = view(block);
  // Read before: as soon as the block is idle, another process may take it for another domain.
  const std::size_t lane = lanes_.of(b);
  KV_KILL_POINT("unpin.before_clear");
  const BlockWord before = b.unpin(self_);
  KV_KILL_POINT("unpin.not_yet_counted");
  if (before.holders() == self_.bit) {
    lanes_.idle_changed(block, lane, +1);
    count_used(memory_.tier_of(block), -1);
  }
  KV_KILL_POINT("unpin.counted");
}

/// Frees a block that this process took and has not published. If the process is killed before the
/// block's bit is set in the free bitmap, the reaper sets it.
void BlockPool::free_block(BlockId block) {
  const BlockView b = view(block);
  const BlockWord word = b.word();
  KV_KILL_POINT("give_back.before_free");
  b.set_word(word.freed());
  KV_KILL_POINT("give_back.freed");
  const Tier t = memory_.tier_of(block);
  count_used(t, -1);
  lanes_.freed(block);
  KV_KILL_POINT("give_back.counted");
  tier(t).free.given_back(block, word.generation());
}

}  // namespace kvhive
