#pragma once
// Finds published blocks by their hash. The entries are hints: a lost hint costs a miss, a stale
// hint is removed by the match that reads it, and an insert into full buckets replaces a hint.
// Nothing here needs repair after a crash, and no operation waits for another process.
//
// A hash has two buckets of eight hints each. With at most one block per bucket on average,
// practically no hint is ever lost. The second bucket is read only if the first bucket has a mark:
// an insert that finds the first bucket full sets the mark and then places its hint in the second.
//
// Marks are needed only as long as there is such a hint, and pool/care/index_marks.hpp clears the
// others. It may clear one that an insert has just relied on. So both sides write, pass a
// sequentially consistent fence, and then read what the other writes: the insert writes the hint
// and reads the mark, the cleaner clears the mark and reads the hint. At least one of them sees the
// other's change and sets the mark again. If the one that would is killed first, the hint is not
// found until the cleaner runs again.

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "base/kill_point.hpp"
#include "hashing/block_hash.hpp"
#include "pool/pool_layout.hpp"
#include "base/prefetch.hpp"

namespace kvhive {

class PrefixIndex {
 public:
  PrefixIndex(IndexBucket* buckets, std::size_t count) : buckets_(buckets), mask_(count - 1) {}

  void prefetch(Hash128 hash) const { kvhive::prefetch(&first(hash)); }
  void prefetch_to_write(Hash128 hash) const { kvhive::prefetch_to_write(&first(hash)); }

  /// Calls visit(BlockId) for each hint under `hash`, those of the first bucket first. Block ids
  /// are NOT checked for range. `visit` returns whether the hint is kept or dropped.
  enum class HintUse : std::uint8_t { keep, drop };
  template <class Visit>
  void for_each(Hash128 hash, Visit&& visit) const;

  /// Inserts a hint. If both buckets are full, it replaces another hint, unless there is already a
  /// hint for this hash.
  void insert(Hash128 hash, BlockId block) const;

  /// Inserts a hint if there is room. False if both buckets are full.
  bool offer(Hash128 hash, BlockId block) const;

  /// Whether a hint that stands in this bucket is a hint for `hash`, and a lookup of `hash` reads
  /// this bucket.
  bool leads_to(std::size_t bucket, std::uint64_t hint, Hash128 hash) const {
    return (hint & kTagMask) == tag(hash) &&
           (bucket == (hash.low & mask_) ||
            (bucket == (hash.high & mask_) && has_spilled(first(hash))));
  }
  /// The block that a hint names; the null block if the entry is empty.
  static BlockId block_of(std::uint64_t hint) { return BlockId{std::uint32_t(hint & kBlockMask)}; }
  /// The entry's value after its hint is removed: only the mark stays.
  static std::uint64_t without_hint(std::uint64_t hint) { return hint & kSpilled; }

  /// Removes the hint, if there is one. Looks into the second bucket without regard to the mark, so
  /// that no hint is left there that a later mark would bring back.
  void erase(Hash128 hash, BlockId block) const;

  // -- marks, for their cleaner

  std::size_t home_of(Hash128 hash) const { return hash.low & mask_; }
  bool is_marked(std::size_t bucket) const { return has_spilled(buckets_[bucket]); }
  void mark(std::size_t bucket) const { set_mark(buckets_[bucket]); }
  void clear_mark(std::size_t bucket) const {
    buckets_[bucket].way[0].fetch_and(~kSpilled, std::memory_order_seq_cst);
  }
  /// Whether the hint stands in the second bucket, and not in the first.
  bool needs_mark(Hash128 hash, BlockId block) const {
    return &first(hash) != &second(hash) && contains(second(hash), entry(hash, block)) &&
           !contains(first(hash), entry(hash, block));
  }
  void prefetch_second(Hash128 hash) const { kvhive::prefetch(&second(hash)); }

  /// What a quick look into a hash's first bucket shows: `block` is the first block that the bucket
  /// names under this hash, not checked for range, or the null block. `is_only` = the index has no
  /// other hint under this hash.
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

  /// A mask of the bucket's entries that have this hash's tag; if the tag is 0, empty entries
  /// count, too. Has no branches, so that the CPU does the eight loads at the same time.
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
  static void set_mark(IndexBucket& bucket) {
    bucket.way[0].fetch_or(kSpilled, std::memory_order_seq_cst);
  }
  static bool contains(const IndexBucket& bucket, std::uint64_t hint);
  static bool place(IndexBucket& bucket, std::uint64_t hint);
  static bool spill(IndexBucket& home, IndexBucket& second, std::uint64_t hint);
  static bool remove(IndexBucket& bucket, std::uint64_t hint);

  static constexpr std::uint64_t kTagMask = 0xffffffff00000000;
  static constexpr std::uint64_t kBlockMask = 0x7fffffff;
  /// The mark, in a bucket's first entry: the bucket has been full, so some of its hints may be in
  /// their second buckets.
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
      // The entry may have changed since matches() read it.
      if ((hint & kTagMask) != tag(hash) || block_of(hint) == kNullBlock) continue;
      if (visit(block_of(hint)) == HintUse::keep) continue;
      KV_KILL_POINT("index.before_drop");
      way.compare_exchange_strong(hint, without_hint(hint), std::memory_order_acq_rel);
      KV_KILL_POINT("index.dropped");
    }
    if (!has_spilled(*bucket)) return;
  }
}

}  // namespace kvhive
