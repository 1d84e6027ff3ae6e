#pragma once
// A fiber: a stack and a place to go on at. Switching takes some nanoseconds (x86-64; elsewhere
// ucontext does it) and is announced to AddressSanitizer and ThreadSanitizer where one of them is
// linked in.

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
  const void* stack = nullptr;  ///< lowest byte; null for the thread's own until it is first left
  std::size_t stack_bytes = 0;
  void* fake_stack = nullptr;  ///< AddressSanitizer's
  void* tsan_fiber = nullptr;
};

/// Stack memory, lowest byte first, with a page below it that faults.
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

/// `fiber` will begin with entry(), which must never return.
void prepare(Fiber& fiber, const FiberStack& stack, void (*entry)());
/// For the thread that is running: where fibers switch back to.
void adopt_thread(Fiber& fiber);
void retire(Fiber& fiber);

/// Goes on in `to`; returns when somebody switches back to `from`.
void switch_fiber(Fiber& from, Fiber& to);
/// The first thing in an entry().
void arrived_in_new_fiber();

}  // namespace simt
