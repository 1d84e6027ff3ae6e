#include "pool/free_blocks.hpp"

#include <algorithm>
#include <bit>
#include <unordered_set>

#include "base/kill_point.hpp"

namespace kvhive {

FreeBlocks::FreeBlocks(const PoolMemory& memory, Tier tier)
    : descriptors_(memory.descriptors()),
      layout_(memory.tier_layout(tier)),
      bitmap_(memory.bitmap(tier)),
      summary_(memory.summary(tier)) {}

std::optional<Candidate> FreeBlocks::next() {
  if (auto own = pop_own()) return own;
  return search_bitmap();
}

std::optional<Candidate> FreeBlocks::pop_own() {
  while (!own_.empty()) {
    const Own top = own_.back();
    own_.pop_back();
    const BlockWord now = word(top.block);
    if (is_current(top, now)) return Candidate{top.block, now};
  }
  return std::nullopt;
}

std::optional<Candidate> FreeBlocks::search_bitmap() {
  for (std::size_t s = 0; s < layout_.summary_words; ++s) {
    for (std::uint64_t groups = summary_[s].load(std::memory_order_relaxed); groups != 0;
         groups &= groups - 1) {
      const auto bit = static_cast<unsigned>(std::countr_zero(groups));
      const std::size_t group = s * 64 + bit;
      if (group >= layout_.bitmap_groups) break;  // a bit beyond the end is corrupt: not an index
      if (auto found = search_group(group)) return found;
      // No free block is left in this group, so its bit in the summary is cleared. A process that
      // sets a bit in the bitmap sets the summary's bit afterwards. So the group is read again
      // after clearing, and the summary's bit is set again if necessary: no bit gets lost.
      KV_KILL_POINT("free.before_summary_clear");
      summary_[s].fetch_and(~(1ull << bit), std::memory_order_seq_cst);
      KV_KILL_POINT("free.summary_cleared");
      if (!has_bits(group)) continue;
      KV_KILL_POINT("free.before_summary_again");
      summary_[s].fetch_or(1ull << bit, std::memory_order_relaxed);
      KV_KILL_POINT("free.summary_again");
    }
  }
  return std::nullopt;
}

std::optional<Candidate> FreeBlocks::search_group(std::size_t group) const {
  const std::size_t first = group * layout_.kGroupWords;
  const std::size_t end = std::min(first + layout_.kGroupWords, layout_.bitmap_words);
  for (std::size_t w = first; w < end; ++w)
    for (std::uint64_t bits = bitmap_[w].load(std::memory_order_relaxed); bits != 0;
         bits &= bits - 1)
      if (auto found = check_bit(w, static_cast<unsigned>(std::countr_zero(bits)))) return found;
  return std::nullopt;
}

bool FreeBlocks::has_bits(std::size_t group) const {
  const std::size_t first = group * layout_.kGroupWords;
  const std::size_t end = std::min(first + layout_.kGroupWords, layout_.bitmap_words);
  for (std::size_t w = first; w < end; ++w)
    if (bitmap_[w].load(std::memory_order_seq_cst) != 0) return true;
  return false;
}

/// Returns the block of a set bit if the block is free; otherwise the bit is stale and is cleared.
std::optional<Candidate> FreeBlocks::check_bit(std::size_t word_index, unsigned bit) const {
  const auto offset = std::uint32_t(word_index * 64 + bit);
  if (offset >= layout_.blocks) {  // corrupt: not a block of the tier
    bitmap_[word_index].fetch_and(~(1ull << bit), std::memory_order_seq_cst);
    return std::nullopt;
  }
  const BlockId block{layout_.first_block + offset};
  BlockWord now = word(block);
  if (is_free(block, now)) return Candidate{block, now};
  KV_KILL_POINT("free.before_stale_bit_clear");
  bitmap_[word_index].fetch_and(~(1ull << bit), std::memory_order_seq_cst);
  KV_KILL_POINT("free.stale_bit_cleared");
  // The block may have been freed just now and its bit set before this process cleared it.
  now = word(block);
  if (!is_free(block, now)) return std::nullopt;
  KV_KILL_POINT("free.freed_meanwhile");
  announce(block);
  return Candidate{block, now};
}

void FreeBlocks::taken(BlockId block) const {
  const std::uint32_t offset = block.value - layout_.first_block;
  KV_KILL_POINT("free.before_bit_clear");
  bitmap_[offset / 64].fetch_and(~(1ull << offset % 64), std::memory_order_relaxed);
  KV_KILL_POINT("free.bit_cleared");
}

void FreeBlocks::given_back(BlockId block, std::uint64_t generation) {
  announce(block);
  own_.push_back({block, generation});
  if (own_.size() > 2 * std::size_t{layout_.blocks} + 64) drop_stale_own();
}

void FreeBlocks::announce(BlockId block) const {
  const std::uint32_t offset = block.value - layout_.first_block;
  const std::size_t w = offset / 64;
  KV_KILL_POINT("free.before_bit_set");
  bitmap_[w].fetch_or(1ull << offset % 64, std::memory_order_seq_cst);
  KV_KILL_POINT("free.bit_set");
  const std::size_t group = w / layout_.kGroupWords;
  const std::uint64_t bit = 1ull << group % 64;
  if ((summary_[group / 64].load(std::memory_order_seq_cst) & bit) != 0) return;
  KV_KILL_POINT("free.before_summary_set");
  summary_[group / 64].fetch_or(bit, std::memory_order_seq_cst);
  KV_KILL_POINT("free.summary_set");
}

bool FreeBlocks::is_announced(BlockId block) const {
  const std::uint32_t offset = block.value - layout_.first_block;
  const std::size_t w = offset / 64, group = w / layout_.kGroupWords;
  return (bitmap_[w].load(std::memory_order_relaxed) >> offset % 64 & 1) != 0 &&
         (summary_[group / 64].load(std::memory_order_relaxed) >> group % 64 & 1) != 0;
}

std::size_t FreeBlocks::find_lost() const {
  std::size_t found = 0;
  for (std::uint32_t i = 0; i < layout_.blocks; ++i) {
    const BlockId block{layout_.first_block + i};
    if (!is_free(block, word(block)) || is_announced(block)) continue;
    announce(block);
    ++found;
  }
  return found;
}

/// Drops entries of blocks that other processes have taken. A block has at most one current entry.
void FreeBlocks::drop_stale_own() {
  std::erase_if(own_, [this](const Own& entry) { return !is_current(entry, word(entry.block)); });
}

std::vector<BlockId> FreeBlocks::order() const {
  std::vector<BlockId> order;
  std::unordered_set<BlockId> listed;
  for (auto entry = own_.rbegin(); entry != own_.rend(); ++entry) {
    if (is_current(*entry, word(entry->block)) && listed.insert(entry->block).second)
      order.push_back(entry->block);
  }
  for (std::uint32_t i = 0; i < layout_.blocks; ++i) {
    const BlockId block{layout_.first_block + i};
    if (is_free(block, word(block)) && listed.insert(block).second) order.push_back(block);
  }
  return order;
}

}  // namespace kvhive
