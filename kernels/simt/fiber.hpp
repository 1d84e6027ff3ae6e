#pragma once
// A fiber: a stack and a place to resume. A switch takes some nanoseconds (x86-64; ucontext
// elsewhere) and is announced to AddressSanitizer and ThreadSanitizer if one of them is linked in.

#include <cstddef>
#if !defined(__x86_64__)
#include <ucontext.h>
#endif

namespace simt {

struct Fiber {
#if defined(__x86_64__)
  void* stack_pointer = nullptr;
#else
  ucontext_t context;
#endif
  const void* stack =
      nullptr;  ///< lowest byte; null for a thread's own stack until it is first left
  std::size_t stack_bytes = 0;
  void* fake_stack = nullptr;  ///< AddressSanitizer's
  void* tsan_fiber = nullptr;
};

/// Memory of a stack, lowest byte first, with an inaccessible page below it.
class FiberStack {
 public:
  explicit FiberStack(std::size_t bytes);
  ~FiberStack();
  FiberStack(FiberStack&& other) noexcept : memory_(other.memory_), bytes_(other.bytes_) {
    other.memory_ = nullptr;
  }
  FiberStack& operator=(FiberStack&&) = delete;

  std::byte* lowest() const;
  std::size_t bytes() const { return bytes_; }

 private:
  std::byte* memory_;
  std::size_t bytes_;
};

/// `fiber` will start with entry(), which must never return.
void prepare(Fiber& fiber, const FiberStack& stack, void (*entry)());
/// Makes `fiber` stand for the running OS thread, so that fibers can switch back to it.
void adopt_thread(Fiber& fiber);
void retire(Fiber& fiber);

/// Resumes `to`. Returns when another fiber switches back to `from`.
void switch_fiber(Fiber& from, Fiber& to);
/// Must be the first call in entry().
void arrived_in_new_fiber();

}  // namespace simt
