#include "pool/care/index_marks.hpp"

#include <atomic>
#include <vector>

#include "base/kill_point.hpp"
#include "pool/prefix_index.hpp"

namespace kvhive {
namespace {

PrefixIndex index_of(const PoolMemory& memory) {
  return {memory.index(), memory.layout().index_buckets};
}

/// For each bucket: whether a published block's hint stands in its second bucket instead. A process
/// inserts a hint after its block has become ready, so no hint of use is overlooked. If a block
/// changes while it is read, a mark may be kept or set that no hint needs.
std::vector<bool> needed_marks(const PoolMemory& memory, const PrefixIndex& index) {
  constexpr std::uint32_t kAhead = 16;
  std::vector<bool> is_needed(memory.layout().index_buckets);
  const std::uint32_t blocks = memory.geometry().total_blocks();
  for (std::uint32_t id = 1; id < blocks; ++id) {
    if (id + kAhead < blocks) {
      const Hash128 ahead = memory.block(BlockId{id + kAhead}).name();
      index.prefetch(ahead);
      index.prefetch_second(ahead);
    }
    const BlockView block = memory.block(BlockId{id});
    if (!block.word().is_ready()) continue;
    const Hash128 name = block.name();
    if (index.needs_mark(name, BlockId{id})) is_needed[index.home_of(name)] = true;
  }
  return is_needed;
}

}  // namespace

IndexMarks count_marks(const PoolMemory& memory) {
  const PrefixIndex index = index_of(memory);
  IndexMarks marks{.buckets = memory.layout().index_buckets};
  for (std::size_t b = 0; b < marks.buckets; ++b) marks.marked += index.is_marked(b);
  return marks;
}

ClearedMarks clear_marks(const PoolMemory& memory) {
  const PrefixIndex index = index_of(memory);
  const std::size_t buckets = memory.layout().index_buckets;
  ClearedMarks done;
  std::vector<bool> is_needed = needed_marks(memory, index);
  for (std::size_t b = 0; b < buckets; ++b) {
    if (is_needed[b] || !index.is_marked(b)) continue;
    KV_KILL_POINT("marks.before_clear");
    index.clear_mark(b);
    KV_KILL_POINT("marks.cleared");
    ++done.cleared;
  }
  // Hints that were inserted since the first pass: either this pass sees them, or the process that
  // inserted them sees that the mark is gone.
  std::atomic_thread_fence(std::memory_order_seq_cst);
  is_needed = needed_marks(memory, index);
  for (std::size_t b = 0; b < buckets; ++b) {
    if (!is_needed[b] || index.is_marked(b)) continue;
    KV_KILL_POINT("marks.before_restore");
    index.mark(b);
    KV_KILL_POINT("marks.restored");
    ++done.restored;
  }
  return done;
}

}  // namespace kvhive
