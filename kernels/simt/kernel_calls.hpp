#pragma once
// The interface between emulated kernels and the engine. One OS thread runs one block at a time;
// each CUDA thread is a fiber; fibers are switched only where CUDA threads wait for each other.
// cuda.hpp gives these functions CUDA's names; launch.hpp starts a kernel.

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace simt {

struct Dim3 {
  unsigned x = 1, y = 1, z = 1;
};
struct Index3 {
  unsigned x = 0, y = 0, z = 0;
};

/// The running CUDA thread's indices and memory.
struct Thread {
  Index3 thread, block;
  Dim3 block_dim, grid_dim;
  unsigned lane = 0;
  std::byte* shared = nullptr;  ///< the block's dynamic shared memory, 1,024-byte aligned
};
extern constinit thread_local Thread* self;

/// Source line of a call. As a default argument, here() gives the caller's line.
struct Line {
  const char* file;
  unsigned number;
  static constexpr Line here(const char* file = __builtin_FILE(),
                             unsigned number = __builtin_LINE()) {
    return {file, number};
  }
};

/// Reports that the kernel does something CUDA forbids. Ends the block; launch() throws an Error
/// with this text.
[[noreturn]] void fail(const char* what, Line line);
void expect_aligned(const void* address, std::size_t alignment, const char* what, Line line);

/// __syncthreads: waits for all threads of the block.
void barrier(Line line);

/// A warp operation. Waits for all lanes of `mask` that have not exited, and returns the words that
/// each of them passed, [lane][word]. The words stay valid until the lane's operation after the
/// next.
struct WarpWords {
  static constexpr int kMaxWords = 6;
  const std::uint64_t (*of)[kMaxWords];
  std::uint32_t lanes;  ///< lanes that took part
};
enum class MemoryOrder { none, ordered };  ///< __syncwarp orders memory; shuffles and mma do not
WarpWords warp_exchange(std::uint32_t mask, const char* operation, const std::uint64_t* words,
                        int count, MemoryOrder order, Line line);

/// cp.async: copies `bytes`, then writes `zeros` zeros. The kernel's own code calls deliver(), so
/// that sanitizers attribute the access to it.
struct AsyncCopy {
  void* destination;
  const void* source;
  std::uint32_t bytes;
  std::uint32_t zeros;
};
inline void deliver(const AsyncCopy& copy) {
  if (copy.bytes != 0) std::memcpy(copy.destination, copy.source, copy.bytes);
  if (copy.zeros != 0)
    std::memset(static_cast<std::byte*>(copy.destination) + copy.bytes, 0, copy.zeros);
}
/// True: deliver the copy now. False: it has been queued.
bool is_delivered_early(const AsyncCopy& copy);
void async_commit();
/// Takes the next queued copy that is not in the latest `pending_groups` groups; false if there is
/// none.
bool next_async_copy(unsigned pending_groups, AsyncCopy* copy);

}  // namespace simt
