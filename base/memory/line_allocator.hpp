#pragma once
// Memory for large arrays of numbers: whole cache lines, and huge pages where the kernel has some.

#include <sys/mman.h>

#include <cstddef>
#include <cstdlib>
#include <new>
#include <vector>

#include "base/memory/huge_pages.hpp"

namespace kvhive {

/// \tparam kLeast  bytes from which on memory is asked for in huge pages
template <class T, std::size_t kLeast = 2 * kHugePage>
struct LineAllocator {
  using value_type = T;
  template <class U>
  struct rebind {
    using other = LineAllocator<U, kLeast>;
  };

  LineAllocator() = default;
  template <class U>
  LineAllocator(const LineAllocator<U, kLeast>&) {}  // NOLINT: allocators convert

  T* allocate(std::size_t count) {
    constexpr std::size_t kLine = 64;
    const std::size_t bytes = count * sizeof(T);
    const std::size_t unit = bytes >= kLeast ? kHugePage : kLine;
    void* const memory = std::aligned_alloc(unit, (bytes + unit - 1) / unit * unit);
    if (memory == nullptr) throw std::bad_alloc();
    if (unit == kHugePage) ::madvise(memory, bytes, MADV_HUGEPAGE);  // a hint; without it it works
    return static_cast<T*>(memory);
  }
  void deallocate(T* memory, std::size_t) { std::free(memory); }

  friend bool operator==(LineAllocator, LineAllocator) { return true; }
};

template <class T>
using LineVector = std::vector<T, LineAllocator<T>>;

}  // namespace kvhive
