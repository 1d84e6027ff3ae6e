// Makes every `new` of the program return memory that the GPU can read and write in place. So the
// kernels' tests, which use plain pointers, run on a GPU unchanged. Access from the GPU is slow,
// which does not matter to tests.

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <memory_resource>
#include <new>

namespace {

constexpr std::size_t kBytes = std::size_t{8} << 30;

class PinnedMemory {
 public:
  PinnedMemory() : region_(pin(), kBytes, std::pmr::null_memory_resource()), pool_(&region_) {}

  void* allocate(std::size_t bytes, std::size_t alignment) {
    return pool_.allocate(bytes, alignment);
  }
  void deallocate(void* memory, std::size_t bytes, std::size_t alignment) {
    pool_.deallocate(memory, bytes, alignment);
  }

 private:
  static void* pin() {
    void* memory = nullptr;
    const cudaError_t error = cudaHostAlloc(&memory, kBytes, cudaHostAllocMapped);
    if (error == cudaSuccess) return memory;
    std::fprintf(stderr, "cudaHostAlloc: %s\n", cudaGetErrorString(error));
    std::exit(1);
  }

  std::pmr::monotonic_buffer_resource region_;
  std::pmr::synchronized_pool_resource pool_;
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
  auto* base = static_cast<std::byte*>(pinned().allocate(front + bytes, alignment));
  ::new (base + front - sizeof(Header)) Header{bytes, alignment};
  return base + front;
}

void deallocate(void* memory) {
  if (memory == nullptr) return;
  auto* there = static_cast<std::byte*>(memory);
  const Header header = *reinterpret_cast<Header*>(there - sizeof(Header));
  const std::size_t front = sizeof(Header) > header.alignment ? sizeof(Header) : header.alignment;
  pinned().deallocate(there - front, front + header.bytes, header.alignment);
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
