// Finds and pins published blocks.

#include <algorithm>

#include "base/check.hpp"
#include "base/kill_point.hpp"
#include "pool/block_pool_content.hpp"
#include "base/prefetch.hpp"

namespace kvhive {

/// Prefetches what a match reads. Index buckets are at random addresses and all other reads depend
/// on them, so they are prefetched up to 64 blocks ahead. The descriptors and token rows that they
/// lead to mostly lie side by side, and are prefetched 8 blocks ahead, as are the prompt's own
/// tokens.
class BlockPool::MatchPrefetch {
 public:
  MatchPrefetch(const BlockPool& pool, Tier tier, std::span<const Hash128> chain,
                std::span<const TokenId> tokens)
      : pool_(pool),
        chain_(chain),
        tokens_(tokens),
        tier_(tier),
        payload_bytes_(pool.memory_.is_mapped(tier) ? pool.memory_.geometry().block_bytes() : 0),
        first_block_(pool.memory_.tier_layout(tier).first_block) {
    for (std::size_t i = 0; i < std::min(chain.size(), kBucketsAhead); ++i)
      pool_.index_.prefetch(chain[i]);
    for (std::size_t i = 0; i < glances_.size(); ++i) start_block(i);
  }

  /// Returns what the index says about block `i`, and prefetches for later blocks.
  PrefixIndex::Glance next(std::size_t i) {
    const PrefixIndex::Glance glance = glances_[i % glances_.size()];
    if (i + kBucketsAhead < chain_.size()) pool_.index_.prefetch(chain_[i + kBucketsAhead]);
    start_block(i + glances_.size());
    return glance;
  }

 private:
  static constexpr std::size_t kBucketsAhead = 64;
  static constexpr std::size_t kBlocksAhead = 8;

  void start_block(std::size_t i) {
    if (i >= chain_.size()) return;
    prefetch(&tokens_[i * pool_.tokens_per_block()]);
    const auto& glance = glances_[i % glances_.size()] = pool_.index_.glance(chain_[i]);
    if (!pool_.memory_.has_block(glance.block)) return;
    pool_.view(glance.block).prefetch_to_write();
    pool_.memory_.tokens_of(glance.block).prefetch();
    pool_.references_.prefetch(glance.block);
    // The caller reads the block's KV next. The first cache miss there, with its page walk, takes
    // as long as all misses of the match together.
    if (payload_bytes_ != 0 && glance.block.value >= first_block_)
      prefetch(pool_.memory_.arena(tier_) + (glance.block.value - first_block_) * payload_bytes_);
  }

  const BlockPool& pool_;
  std::span<const Hash128> chain_;
  std::span<const TokenId> tokens_;
  Tier tier_;
  std::size_t payload_bytes_;
  std::uint32_t first_block_;
  std::array<PrefixIndex::Glance, kBlocksAhead> glances_;
};

PrefixHit BlockPool::match(Tier tier, const Prefix& from, std::span<const Hash128> chain,
                           std::span<const TokenId> tokens, std::span<const ExtraKey> extras) {
  KV_CHECK(tokens.size() == chain.size() * tokens_per_block(), tokens.size(), chain.size());
  const Contents contents{tokens, extras, tokens_per_block()};
  MatchPrefetch ahead(*this, tier, chain, tokens);
  std::vector<BlockId> found;
  // Kept in registers: a wide load right after two narrow stores stalls (no store forwarding).
  Prefix end = from;
  for (std::size_t i = 0; i < chain.size(); ++i) {
    const Content content = contents.at(i, end);
    auto [block, is_only] = ahead.next(i);
    if (!(is_only && pin_if(block, tier, chain[i], content)))
      block = find_and_pin(tier, chain[i], content);
    if (block == kNullBlock) break;
    if (found.empty()) found.reserve(chain.size());
    found.push_back(block);
    advance(end, view(block).uid());
  }
  return {std::move(found), end};
}

/// Pins a block if it has this content. Only for a block that is alone under its name in the index:
/// of several blocks, the first published must be found.
[[gnu::always_inline]] inline bool BlockPool::pin_if(BlockId block, Tier tier, Hash128 hash,
                                                     const Content& content) {
  if (!memory_.has_block(block) || memory_.tier_of(block) != tier) return false;
  const BlockView b = view(block);
  const Publication seen = look_at(b);
  return seen.word.is_ready() && b.name() == hash && holds(block, b, content) &&
         pin(block, b, seen);
}

/// Pins the block with this content that was published first (vLLM finds the first inserted).
/// Returns the null block if there is none.
BlockId BlockPool::find_and_pin(Tier tier, Hash128 hash, const Content& content) {
  BlockId best = kNullBlock;
  Publication of_best{.serial = ~0ull, .word = {}};
  index_.for_each(hash, [&](BlockId block) {
    if (!memory_.has_block(block)) return PrefixIndex::HintUse::drop;
    const BlockView b = view(block);
    const Publication seen = look_at(b);
    if (!seen.word.is_ready() || b.name_low() != hash.low) return PrefixIndex::HintUse::drop;
    if (memory_.tier_of(block) != tier || !holds(block, b, content))
      return PrefixIndex::HintUse::keep;
    if (seen.serial < of_best.serial) best = block, of_best = seen;
    return PrefixIndex::HintUse::keep;
  });
  if (best != kNullBlock && pin(best, view(best), of_best)) return best;
  return kNullBlock;
}

/// The serial is read first, so that it is of no later publication than what is read afterwards.
BlockPool::Publication BlockPool::look_at(BlockView block) {
  const std::uint64_t serial = block.serial();
  return {serial, block.word()};
}

/// Pins a block that was ready when `seen` was read. Fails if the block has been taken again since:
/// what was read from the block may then be of other content. The exchange of the word detects
/// this, unless the generation has come round; then the serial does.
[[gnu::always_inline]] inline bool BlockPool::pin(BlockId block, BlockView b, Publication seen) {
  // No other process takes a block that this process holds.
  if (references_.has(block) && seen.word.is_held_by(self_)) [[likely]] {
    references_.add(block);
    if ((seen.word.bits & hit_mark_) != hit_mark_) [[unlikely]]
      b.mark_hit();
    return true;
  }
  KV_KILL_POINT("pin.before_cas");
  if (!b.pin(seen.word, self_, hit_mark_)) return false;
  KV_KILL_POINT("pin.after_cas");
  if (seen.word.holders() == 0) {
    count_used(memory_.tier_of(block), +1);
    if (lanes_.count() != 1) [[unlikely]]
      return pinned_in_lane(block, seen.serial);
  }
  KV_KILL_POINT("pin.counted");
  return has_pinned(block, seen.serial);
}

/// Its rare cases are the last things that it does, as those of pin(), so that they save no
/// registers: an atomic exchange waits for all stores before it.
[[gnu::always_inline]] inline bool BlockPool::has_pinned(BlockId block, std::uint64_t serial) {
  references_.add(block);  // from 0 to 1, unless corruption had cleared this process's bit
  if (view(block).serial() != serial) [[unlikely]]
    return take_pin_back(block);
  return true;
}

/// The block was idle, and blocks are counted by lane.
[[gnu::cold, gnu::noinline]] bool BlockPool::pinned_in_lane(BlockId block, std::uint64_t serial) {
  lanes_.idle_changed(block, lanes_.of(view(block)), -1);
  KV_KILL_POINT("pin.counted");
  return has_pinned(block, serial);
}

/// Drops the reference that pin() took to a block of other content; the block keeps its place in
/// the release order. Returns false. Not inlined, so that pin() stays small.
[[gnu::cold, gnu::noinline]] bool BlockPool::take_pin_back(BlockId block) {
  KV_KILL_POINT("pin.of_other_content");
  cancel({.blocks = {block}, .end = {}});
  return false;
}

void BlockPool::cancel(const PrefixHit& hit) {
  scratch_.clear();
  for (const BlockId block : hit.blocks) {
    if (references_.drop(block) != 0) continue;
    unpin(block);
    scratch_.push_back(block);
  }
  KV_KILL_POINT("cancel.before_restore");
  for (TierState& t : tiers_) t.idle.restore(scratch_);
  KV_KILL_POINT("cancel.restored");
}

}  // namespace kvhive
