#include "pool/prefix_index.hpp"

#include "base/kill_point.hpp"

namespace kvhive {

bool PrefixIndex::contains(const IndexBucket& bucket, std::uint64_t hint) {
  for (const auto& way : bucket.way)
    if ((way.load(std::memory_order_acquire) & ~kSpilled) == hint) return true;
  return false;
}

bool PrefixIndex::place(IndexBucket& bucket, std::uint64_t hint) {
  for (auto& way : bucket.way) {
    std::uint64_t found = way.load(std::memory_order_relaxed);
    if ((found & ~kSpilled) == hint) return true;
    if (block_of(found) == kNullBlock &&
        way.compare_exchange_strong(found, without_hint(found) | hint, std::memory_order_acq_rel))
      return true;
  }
  return false;
}

bool PrefixIndex::offer(Hash128 hash, BlockId block) const {
  KV_KILL_POINT("index.before_insert");
  const std::uint64_t hint = entry(hash, block);
  IndexBucket& home = first(hash);
  return place(home, hint) || spill(home, second(hash), hint);
}

/// The first bucket is full: marks it and places the hint in the second. Not inlined, because it is
/// rare.
[[gnu::noinline]] bool PrefixIndex::spill(IndexBucket& home, IndexBucket& second,
                                          std::uint64_t hint) {
  KV_KILL_POINT("index.before_spill");
  if (!has_spilled(home)) set_mark(home);
  KV_KILL_POINT("index.spilled");
  if (!place(second, hint)) return false;
  KV_KILL_POINT("index.before_second_look");
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (has_spilled(home)) return true;
  set_mark(home);  // its cleaner has not seen the hint
  KV_KILL_POINT("index.marked_again");
  return true;
}

void PrefixIndex::insert(Hash128 hash, BlockId block) const {
  if (offer(hash, block)) return;
  // Both buckets are full, so no entry that matches is an empty one. Many blocks of equal content
  // (one prompt that runs many times at once) must not replace hints for other content: a match
  // finds only the first of equal blocks anyway.
  if ((matches(first(hash), hash) | matches(second(hash), hash)) != 0) return;
  KV_KILL_POINT("index.before_push_out");
  auto& way = first(hash).way[block.value % 8];
  std::uint64_t found = way.load(std::memory_order_relaxed);
  while (!way.compare_exchange_weak(found, without_hint(found) | entry(hash, block),
                                    std::memory_order_acq_rel)) {
  }
  KV_KILL_POINT("index.pushed_out");
}

bool PrefixIndex::remove(IndexBucket& bucket, std::uint64_t hint) {
  for (auto& way : bucket.way) {
    std::uint64_t found = way.load(std::memory_order_relaxed);
    while ((found & ~kSpilled) == hint)  // once more if only the mark has changed
      if (way.compare_exchange_weak(found, without_hint(found), std::memory_order_acq_rel))
        return true;
  }
  return false;
}

void PrefixIndex::erase(Hash128 hash, BlockId block) const {
  KV_KILL_POINT("index.before_erase");
  const std::uint64_t hint = entry(hash, block);
  if (!remove(first(hash), hint)) remove(second(hash), hint);
}

}  // namespace kvhive
