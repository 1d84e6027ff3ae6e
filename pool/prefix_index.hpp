#pragma once
// Hash -> block, as hints. A lost hint costs a miss; a stale one is dropped by the match that meets
// it; a full bucket loses one. Nothing here needs repair after a crash, and no operation waits for
// another process.
//
// A hash has two buckets of eight. With one block per bucket on average, practically no hint is
// ever lost. The second bucket is used and read only once the first has been full: a mark in the
// first says so, for good.

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "hashing/block_hash.hpp"
#include "pool/kill_point.hpp"
#include "pool/pool_layout.hpp"
#include "base/prefetch.hpp"

namespace kvhive {

class PrefixIndex {
 public:
  PrefixIndex(IndexBucket* buckets, std::size_t count) : buckets_(buckets), mask_(count - 1) {}

  void prefetch(Hash128 hash) const { kvhive::prefetch(&first(hash)); }
  void prefetch_to_write(Hash128 hash) const { kvhive::prefetch_to_write(&first(hash)); }

  /// Calls visit(BlockId) for each block hinted at under `hash`, its first bucket first. Block ids
  /// are NOT checked for range. What becomes of the hint, `visit` returns.
  enum class HintUse : std::uint8_t { keep, drop };
  template <class Visit>
  void for_each(Hash128 hash, Visit&& visit) const;

  /// Leaves a hint. If both buckets are full, it replaces another one, unless a hint for this hash
  /// is there already.
  void insert(Hash128 hash, BlockId block) const;

  /// Leaves a hint if there is room. False if both buckets are full.
  bool offer(Hash128 hash, BlockId block) const;

  /// Whether a hint found in this bucket is one for `hash`, and is found there.
  bool leads_to(std::size_t bucket, std::uint64_t hint, Hash128 hash) const {
    return (hint & kTagMask) == tag(hash) &&
           (bucket == (hash.low & mask_) ||
            (bucket == (hash.high & mask_) && has_spilled(first(hash))));
  }
  /// The block a hint names; null block if the way is empty.
  static BlockId block_of(std::uint64_t hint) { return BlockId{std::uint32_t(hint & kBlockMask)}; }
  /// What remains of a way when its hint is removed.
  static std::uint64_t without_hint(std::uint64_t hint) { return hint & kSpilled; }

  /// Removes the hint, if it is there.
  void erase(Hash128 hash, BlockId block) const;

  /// A hash's first bucket at one glance: the first block that it names, unverified, or the null
  /// block; and whether no other block is hinted at under this hash.
  struct Glance {
    BlockId block;
    bool is_only;
  };
  Glance glance(Hash128 hash) const {
    const IndexBucket& bucket = first(hash);
    const unsigned ways = matches(bucket, hash);
    if (ways == 0) return {kNullBlock, false};
    const auto way = static_cast<std::size_t>(std::countr_zero(ways));
    return {block_of(bucket.way[way].load(std::memory_order_acquire)),
            (ways & (ways - 1)) == 0 && !has_spilled(bucket)};
  }

 private:
  IndexBucket& first(Hash128 hash) const { return buckets_[hash.low & mask_]; }
  IndexBucket& second(Hash128 hash) const { return buckets_[hash.high & mask_]; }
  static std::uint64_t entry(Hash128 hash, BlockId block) { return tag(hash) | block.value; }
  static std::uint64_t tag(Hash128 hash) { return hash.high & kTagMask; }

  /// Mask of the ways with this hash's tag; if the tag is 0, empty ways count, too. Without
  /// branches, so that eight loads are in flight at once.
  static unsigned matches(const IndexBucket& bucket, Hash128 hash) {
    unsigned ways = 0;
#pragma GCC unroll 8
    for (unsigned w = 0; w < 8; ++w) {
      const std::uint64_t hint = bucket.way[w].load(std::memory_order_relaxed);
      ways |= unsigned((hint ^ tag(hash)) <= ~kTagMask) << w;
    }
    return ways;
  }
  static bool has_spilled(const IndexBucket& bucket) {
    return (bucket.way[0].load(std::memory_order_relaxed) & kSpilled) != 0;
  }
  static bool place(IndexBucket& bucket, std::uint64_t hint);
  static bool remove(IndexBucket& bucket, std::uint64_t hint);

  static constexpr std::uint64_t kTagMask = 0xffffffff00000000;
  static constexpr std::uint64_t kBlockMask = 0x7fffffff;
  /// In the first way: the bucket was full once, and hints may be in their second buckets.
  static constexpr std::uint64_t kSpilled = 0x80000000;
  static_assert(kMostBlocks <= kBlockMask);

  IndexBucket* buckets_;
  std::size_t mask_;
};

template <class Visit>
void PrefixIndex::for_each(Hash128 hash, Visit&& visit) const {
  for (IndexBucket* bucket : {&first(hash), &second(hash)}) {
    for (unsigned ways = matches(*bucket, hash); ways != 0; ways &= ways - 1) {
      auto& way = bucket->way[static_cast<std::size_t>(std::countr_zero(ways))];
      std::uint64_t hint = way.load(std::memory_order_acquire);
      if ((hint & kTagMask) != tag(hash) || block_of(hint) == kNullBlock) continue;  // just gone
      if (visit(block_of(hint)) == HintUse::keep) continue;
      KV_KILL_POINT("index.before_drop");
      way.compare_exchange_strong(hint, without_hint(hint), std::memory_order_acq_rel);
      KV_KILL_POINT("index.dropped");
    }
    if (!has_spilled(*bucket)) return;
  }
}

}  // namespace kvhive
