#pragma once
// Counts, in private memory, how many references this process has to each block. Shared memory only
// shows whether there is at least one: the process's holder bit is set while the count here is not
// 0.

#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <new>
#include <vector>

#include "base/check.hpp"
#include "base/ids.hpp"
#include "base/memory/memory_object.hpp"
#include "base/prefetch.hpp"

namespace kvhive {

/// Allocates memory in huge pages, if the kernel has them. The counts are read at random addresses,
/// and with huge pages few reads need a page walk. Less than 2 MiB comes from the heap.
template <class T>
struct HugePageAllocator {
  using value_type = T;

  HugePageAllocator() = default;
  template <class Other>
  HugePageAllocator(const HugePageAllocator<Other>&) {}

  T* allocate(std::size_t count) {
    const std::size_t bytes = count * sizeof(T);
    const std::size_t alignment = bytes < kHugePage ? alignof(std::max_align_t) : kHugePage;
    const std::size_t whole = (bytes + alignment - 1) / alignment * alignment;
    void* memory = std::aligned_alloc(alignment, whole);
    if (memory == nullptr) throw std::bad_alloc();
    if (alignment == kHugePage) madvise(memory, whole, MADV_HUGEPAGE);
    return static_cast<T*>(memory);
  }
  void deallocate(T* memory, std::size_t) { std::free(memory); }

  friend bool operator==(const HugePageAllocator&, const HugePageAllocator&) { return true; }
};

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
  std::vector<std::uint32_t, HugePageAllocator<std::uint32_t>> count_;
};

}  // namespace kvhive
