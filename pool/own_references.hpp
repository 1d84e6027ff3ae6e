#pragma once
// Counts, in private memory, how many references this process has to each block. Shared memory only
// shows whether there is at least one: the process's holder bit is set while the count here is not
// 0.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/check.hpp"
#include "base/ids.hpp"
#include "base/memory/huge_pages.hpp"
#include "base/memory/line_allocator.hpp"
#include "base/prefetch.hpp"

namespace kvhive {

class OwnReferences {
 public:
  explicit OwnReferences(std::size_t blocks) : count_(blocks, 0) {}

  std::uint32_t count(BlockId block) const { return count_[block.value]; }
  bool has(BlockId block) const { return count_[block.value] != 0; }

  void add(BlockId block) { ++count_[block.value]; }
  /// Drops one reference. Returns how many are left.
  std::uint32_t drop(BlockId block) {
    KV_CHECK(count_[block.value] > 0, block.value);
    return --count_[block.value];
  }
  void set_first(BlockId block) { count_[block.value] = 1; }
  void forget(BlockId block) { count_[block.value] = 0; }

  void prefetch(BlockId block) const { kvhive::prefetch(&count_[block.value]); }

 private:
  /// Read at random addresses: with huge pages few reads need a page walk, so also one is worth it.
  std::vector<std::uint32_t, LineAllocator<std::uint32_t, kHugePage>> count_;
};

}  // namespace kvhive
