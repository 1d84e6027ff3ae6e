#pragma once
// The memory of a block of emulated threads: the engine's bookkeeping and the block's dynamic
// shared memory.

#include <sys/mman.h>

#include <algorithm>
#include <cstddef>
#include <new>
#include <vector>

#include "kernels/simt/sanitizer_hooks.hpp"

namespace simt {

inline constexpr std::byte kPoison{0xcb};  ///< fills shared memory that no thread has written
inline constexpr std::byte kTail{0xd7};    ///< fills the guard behind it

/// Allocator for all bookkeeping of one block, freed at once. ThreadSanitizer sees the engine's
/// libc calls (memset, memcpy), so the next block's bookkeeping must not reuse the last one's
/// addresses.
class Arena {
 public:
  Arena() { map(); }
  ~Arena() { munmap(memory_, kBytes); }
  Arena(const Arena&) = delete;

  void* allocate(std::size_t bytes) {
    const std::size_t begin = (used_ + 63) / 64 * 64;
    if (begin + bytes > kBytes) throw std::bad_alloc();
    used_ = begin + bytes;
    return memory_ + begin;
  }
  void clear() {
    used_ = 0;
    if (!under_tsan()) return;
    munmap(memory_, kBytes);
    map();
  }

 private:
  static constexpr std::size_t kBytes = 64 << 20;
  void map() {
    void* memory = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) throw std::bad_alloc();
    memory_ = static_cast<std::byte*>(memory);
  }

  std::byte* memory_ = nullptr;
  std::size_t used_ = 0;
};

inline Arena& arena() {
  static thread_local Arena one;
  return one;
}

template <class T>
struct FromArena {
  using value_type = T;
  FromArena() = default;
  template <class U>
  FromArena(const FromArena<U>&) {}  // NOLINT: allocators convert
  T* allocate(std::size_t n) { return static_cast<T*>(arena().allocate(n * sizeof(T))); }
  void deallocate(T*, std::size_t) {}
  bool operator==(const FromArena&) const { return true; }
};
template <class T>
using Vector = std::vector<T, FromArena<T>>;

/// Dynamic shared memory of exactly the requested size, with a guard behind it. Allocated anew for
/// each block under ThreadSanitizer, which would otherwise report a race with the last block's
/// accesses.
class SharedMemory {
 public:
  explicit SharedMemory(std::size_t bytes) : bytes_(bytes), mapped_(round_up(bytes + kGuard)) {
    void* memory =
        mmap(nullptr, mapped_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) throw std::bad_alloc();
    memory_ = static_cast<std::byte*>(memory);
  }
  ~SharedMemory() {
    if (under_asan()) __asan_unpoison_memory_region(memory_, mapped_);
    munmap(memory_, mapped_);
  }
  SharedMemory(const SharedMemory&) = delete;

  std::byte* data() const { return memory_; }
  std::size_t bytes() const { return bytes_; }

  void poison() {
    std::fill_n(memory_, bytes_, kPoison);
    if (!under_asan()) std::fill_n(memory_ + bytes_, kGuard, kTail);
    if (under_asan()) __asan_poison_memory_region(memory_ + bytes_, mapped_ - bytes_);
  }
  bool is_tail_intact() const {
    return under_asan() || std::all_of(memory_ + bytes_, memory_ + bytes_ + kGuard,
                                       [](std::byte b) { return b == kTail; });
  }

 private:
  static constexpr std::size_t kGuard = 4096;
  static std::size_t round_up(std::size_t bytes) { return (bytes + 4095) / 4096 * 4096; }

  std::size_t bytes_;
  std::size_t mapped_;
  std::byte* memory_;
};

}  // namespace simt
