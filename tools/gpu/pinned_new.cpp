// Makes every `new` of the program return memory that the GPU can read and write in place. So the
// kernels' tests, which use plain pointers, run on a GPU unchanged. Access from the GPU is slow,
// which does not matter to tests.

#include <cuda_runtime.h>

#include <array>
#include <bit>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <new>

namespace {

constexpr std::size_t kBytes = std::size_t{1} << 30;

/// Gives out pieces of one page-locked region, each a power of two long, and gives them out again.
class PinnedMemory {
 public:
  void* allocate(std::size_t bytes) {
    const std::lock_guard lock(mutex_);
    const std::size_t size = std::bit_ceil(bytes < sizeof(Piece) ? sizeof(Piece) : bytes);
    if (Piece*& free = free_[std::countr_zero(size)]; free != nullptr) {
      void* piece = free;
      free = free->next;
      return piece;
    }
    const std::size_t aligned = (used_ + size - 1) / size * size;
    if (aligned + size > kBytes) throw std::bad_alloc();
    used_ = aligned + size;
    return region_ + aligned;
  }
  void deallocate(void* memory, std::size_t bytes) {
    const std::lock_guard lock(mutex_);
    Piece*& free =
        free_[std::countr_zero(std::bit_ceil(bytes < sizeof(Piece) ? sizeof(Piece) : bytes))];
    free = ::new (memory) Piece{free};
  }

 private:
  struct Piece {
    Piece* next;
  };

  static std::byte* pin() {
    void* memory = nullptr;
    const cudaError_t error = cudaHostAlloc(&memory, kBytes, cudaHostAllocMapped);
    if (error == cudaSuccess) return static_cast<std::byte*>(memory);
    std::fprintf(stderr, "cudaHostAlloc: %s\n", cudaGetErrorString(error));
    std::exit(1);
  }

  std::byte* const region_ = pin();
  std::size_t used_ = 0;
  std::array<Piece*, 64> free_{};
  std::mutex mutex_;
};

PinnedMemory& pinned() {
  alignas(PinnedMemory) static std::byte place[sizeof(
      PinnedMemory)];  // never destroyed, because other destructors may still free memory
  static PinnedMemory* memory = ::new (place) PinnedMemory();
  return *memory;
}

/// Lies in front of each allocation and tells how to free it.
struct Header {
  std::size_t bytes, alignment;
};

void* allocate(std::size_t bytes, std::size_t alignment) {
  if (alignment < alignof(std::max_align_t)) alignment = alignof(std::max_align_t);
  const std::size_t front = sizeof(Header) > alignment ? sizeof(Header) : alignment;
  auto* base = static_cast<std::byte*>(pinned().allocate(front + bytes));
  ::new (base + front - sizeof(Header)) Header{bytes, alignment};
  return base + front;
}

void deallocate(void* memory) {
  if (memory == nullptr) return;
  auto* there = static_cast<std::byte*>(memory);
  const Header header = *reinterpret_cast<Header*>(there - sizeof(Header));
  const std::size_t front = sizeof(Header) > header.alignment ? sizeof(Header) : header.alignment;
  pinned().deallocate(there - front, front + header.bytes);
}

}  // namespace

void* operator new(std::size_t bytes) { return allocate(bytes, 1); }
void* operator new(std::size_t bytes, std::align_val_t alignment) {
  return allocate(bytes, static_cast<std::size_t>(alignment));
}
void operator delete(void* memory) noexcept { deallocate(memory); }
void operator delete(void* memory, std::size_t) noexcept { deallocate(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { deallocate(memory); }
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { deallocate(memory); }
