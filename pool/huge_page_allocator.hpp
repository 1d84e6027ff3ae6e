#pragma once
// Private memory for large arrays that are read here and there, such as what a process notes about
// every block: in huge pages, where the kernel has them, so that a first look does not begin with a
// page walk.

#include <sys/mman.h>

#include <cstddef>
#include <cstdlib>
#include <new>

namespace kvhive {

template <class T>
struct HugePageAllocator {
  using value_type = T;
  static constexpr std::size_t kHugePage = std::size_t{2} << 20;

  HugePageAllocator() = default;
  template <class Other>
  HugePageAllocator(const HugePageAllocator<Other>&) {}

  T* allocate(std::size_t count) {
    // Less than a huge page is left to the usual ones.
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

}  // namespace kvhive
