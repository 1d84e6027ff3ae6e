#pragma once
// Hash -> block, as hints. A lost hint is a miss; a stale one is dropped by whoever meets it; a
// full bucket forgets one. Nothing here needs repair after a crash, and no operation waits for
// another process.
//
// Two candidate buckets of eight per hash: at one block per bucket on average, practically nothing
// is ever forgotten. The second is used, and looked at, only once the first has been full: a mark
// in the first says so, for good.

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "hashing/block_hash.hpp"
#include "pool/kill_point.hpp"
#include "pool/pool_layout.hpp"
#include "pool/prefetch.hpp"

namespace kvhive {

class PrefixIndex {
 public:
  PrefixIndex(IndexBucket* buckets, std::size_t count) : buckets_(buckets), mask_(count - 1) {}

  void prefetch(Hash128 hash) const { kvhive::prefetch(&first(hash)); }
  void prefetch_to_write(Hash128 hash) const { kvhive::prefetch_to_write(&first(hash)); }

  /// Calls visit(BlockId) for each block hinted at under `hash`, its first bucket first. Block ids
  /// are NOT checked for range. The hint is dropped if visit returns Verdict::drop.
  enum class Verdict : std::uint8_t { keep, drop };
  template <class Visit>
  void for_each(Hash128 hash, Visit&& visit) const;

  /// Leaves a hint. In two full buckets another hint gives way, unless the hash is hinted at there
  /// already.
  void insert(Hash128 hash, BlockId block) const;

  /// Leaves a hint if there is room, pushing nothing out. False if there is none.
  bool offer(Hash128 hash, BlockId block) const;

  /// Whether a hint found in this bucket is one for `hash`, and is found there.
  bool leads_to(std::size_t bucket, std::uint64_t hint, Hash128 hash) const {
    return (hint & kTagMask) == tag(hash) &&
           (bucket == (hash.low & mask_) ||
            (bucket == (hash.high & mask_) && has_spilled(first(hash))));
  }
  /// The block a hint names; null block if the way is empty.
  static BlockId block_of(std::uint64_t hint) { return BlockId{std::uint32_t(hint & kBlockMask)}; }
  /// What is left of a way when its hint is taken away.
  static std::uint64_t without_hint(std::uint64_t hint) { return hint & kSpilled; }

  /// Takes the hint away, if it is there.
  void erase(Hash128 hash, BlockId block) const;

  /// One look at a hash's first bucket: the block named first, unverified, or the null block; and
  /// whether no other is hinted at under this hash anywhere.
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

  /// Mask of the ways that bear this hash's tag; if that is 0, of empty ones, too. Without
  /// branches: eight loads in flight at once.
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
  /// In the first way: hints for which there was no room here may be in their second buckets.
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
      if (visit(block_of(hint)) == Verdict::keep) continue;
      KV_KILL_POINT("index.before_drop");
      way.compare_exchange_strong(hint, without_hint(hint), std::memory_order_acq_rel);
      KV_KILL_POINT("index.dropped");
    }
    if (!has_spilled(*bucket)) return;
  }
}

}  // namespace kvhive
