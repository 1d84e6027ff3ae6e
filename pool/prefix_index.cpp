#include "pool/prefix_index.hpp"

#include "pool/kill_point.hpp"

namespace kvhive {

void PrefixIndex::insert(Hash128 hash, BlockId block) const {
  const std::uint64_t hint = entry(hash, block);
  bool is_hinted = false;
  KV_KILL_POINT("index.before_insert");
  for (IndexBucket* bucket : {&first(hash), &second(hash)}) {
    for (auto& way : bucket->way) {
      std::uint64_t found = way.load(std::memory_order_relaxed);
      if (found == hint) return;
      if (found == 0 && way.compare_exchange_strong(found, hint, std::memory_order_acq_rel)) return;
      is_hinted |= found != 0 && (found & kTagMask) == tag(hash);
    }
  }
  // Both are full. Many blocks of one content (a prompt running many times at once) must not push
  // others out: of equal blocks the first is found anyway.
  if (is_hinted) return;
  KV_KILL_POINT("index.before_push_out");
  first(hash).way[block.value % 8].store(hint, std::memory_order_release);
  KV_KILL_POINT("index.pushed_out");
}

bool PrefixIndex::offer(Hash128 hash, BlockId block) const {
  const std::uint64_t hint = entry(hash, block);
  for (IndexBucket* bucket : {&first(hash), &second(hash)}) {
    for (auto& way : bucket->way) {
      std::uint64_t found = way.load(std::memory_order_relaxed);
      if (found == hint) return true;
      if (found == 0 && way.compare_exchange_strong(found, hint, std::memory_order_acq_rel))
        return true;
    }
  }
  return false;
}

void PrefixIndex::erase(Hash128 hash, BlockId block) const {
  KV_KILL_POINT("index.before_erase");
  const std::uint64_t hint = entry(hash, block);
  for (IndexBucket* bucket : {&first(hash), &second(hash)}) {
    for (auto& way : bucket->way) {
      std::uint64_t found = way.load(std::memory_order_relaxed);
      if (found == hint && way.compare_exchange_strong(found, 0, std::memory_order_acq_rel)) return;
    }
  }
}

BlockId PrefixIndex::peek(Hash128 hash) const {
  for (const auto& way : first(hash).way) {
    const std::uint64_t hint = way.load(std::memory_order_relaxed);
    if (hint != 0 && (hint & kTagMask) == tag(hash)) return BlockId{std::uint32_t(hint)};
  }
  return kNullBlock;
}

}  // namespace kvhive
