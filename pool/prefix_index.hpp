#pragma once
// Hash -> block, as hints. A lost hint is a miss; a stale one is dropped by whoever meets it; a
// full bucket forgets one. Nothing here needs repair after a crash, and no operation waits for
// another process.
//
// Two candidate buckets of eight per hash: at one block per bucket on average, practically nothing
// is ever forgotten.

#include <array>
#include <cstddef>
#include <cstdint>

#include "hashing/block_hash.hpp"
#include "pool/kill_point.hpp"
#include "pool/pool_layout.hpp"

namespace kvhive {

class PrefixIndex {
 public:
  PrefixIndex(IndexBucket* buckets, std::size_t count) : buckets_(buckets), mask_(count - 1) {}

  void prefetch(Hash128 hash) const { __builtin_prefetch(&first(hash)); }

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

  /// Whether a hint found in this bucket is one for `hash`.
  bool leads_to(std::size_t bucket, std::uint64_t hint, Hash128 hash) const {
    return (hint & kTagMask) == tag(hash) &&
           (bucket == (hash.low & mask_) || bucket == (hash.high & mask_));
  }

  /// Takes the hint away, if it is there.
  void erase(Hash128 hash, BlockId block) const;

  /// The block named first under `hash`, unverified; null block if none. For prefetching.
  BlockId peek(Hash128 hash) const;

 private:
  IndexBucket& first(Hash128 hash) const { return buckets_[hash.low & mask_]; }
  IndexBucket& second(Hash128 hash) const { return buckets_[hash.high & mask_]; }
  static std::uint64_t entry(Hash128 hash, BlockId block) { return tag(hash) | block.value; }
  static std::uint64_t tag(Hash128 hash) { return hash.high & kTagMask; }
  static constexpr std::uint64_t kTagMask = 0xffffffff00000000ull;

  IndexBucket* buckets_;
  std::size_t mask_;
};

template <class Visit>
void PrefixIndex::for_each(Hash128 hash, Visit&& visit) const {
  for (IndexBucket* bucket : {&first(hash), &second(hash)}) {
    for (auto& way : bucket->way) {
      std::uint64_t hint = way.load(std::memory_order_acquire);
      if (hint == 0 || (hint & kTagMask) != tag(hash)) continue;
      if (visit(BlockId{std::uint32_t(hint)}) == Verdict::keep) continue;
      KV_KILL_POINT("index.before_drop");
      way.compare_exchange_strong(hint, 0, std::memory_order_acq_rel);
      KV_KILL_POINT("index.dropped");
    }
  }
}

}  // namespace kvhive
