#include "kernels/simt/fiber.hpp"

#include <sys/mman.h>

#include <new>

#include "kernels/simt/sanitizer_hooks.hpp"

namespace simt {
namespace {

constexpr std::size_t kGuardBytes = 4096;

thread_local Fiber* left = nullptr;  ///< the fiber that the current switch leaves

/// Runs in the new fiber after each switch.
void arrive(void* fake_stack) {
  if (!__sanitizer_finish_switch_fiber) return;
  const void* bottom = nullptr;
  std::size_t bytes = 0;
  __sanitizer_finish_switch_fiber(fake_stack, &bottom, &bytes);
  if (left->stack == nullptr) {  // the thread's own stack: only AddressSanitizer knows its bounds
    left->stack = bottom;
    left->stack_bytes = bytes;
  }
}

}  // namespace

FiberStack::FiberStack(std::size_t bytes) : bytes_(bytes) {
  void* memory = mmap(nullptr, bytes + kGuardBytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  memory_ = static_cast<std::byte*>(memory);
  mprotect(memory_, kGuardBytes, PROT_NONE);
}

FiberStack::~FiberStack() {
  if (memory_ != nullptr) munmap(memory_, bytes_ + kGuardBytes);
}

std::byte* FiberStack::lowest() const { return memory_ + kGuardBytes; }

#if defined(__x86_64__)

// Saves the registers that the ABI says a callee must keep, and changes stacks. Does not save the
// x87 and SSE control words, since kernels do not change them.
extern "C" void simt_switch_stacks(void** save, void* load);
__asm__(R"(
.text
.globl simt_switch_stacks
.type simt_switch_stacks, @function
simt_switch_stacks:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size simt_switch_stacks, .-simt_switch_stacks
)");

namespace {
void set_entry(Fiber& fiber, const FiberStack& stack, void (*entry)()) {
  constexpr int kSavedRegisters = 6;
  void** top = reinterpret_cast<void**>(stack.lowest() + stack.bytes());
  *--top = nullptr;  // entry has no return address, but the ABI's alignment needs its place
  *--top = reinterpret_cast<void*>(entry);
  for (int i = 0; i < kSavedRegisters; ++i) *--top = nullptr;
  fiber.stack_pointer = top;
}
void change_stacks(Fiber& from, Fiber& to) {
  simt_switch_stacks(&from.stack_pointer, to.stack_pointer);
}
}  // namespace

#else

namespace {
void set_entry(Fiber& fiber, const FiberStack& stack, void (*entry)()) {
  getcontext(&fiber.context);
  fiber.context.uc_stack.ss_sp = stack.lowest();
  fiber.context.uc_stack.ss_size = stack.bytes();
  fiber.context.uc_link = nullptr;
  makecontext(&fiber.context, entry, 0);
}
void change_stacks(Fiber& from, Fiber& to) { swapcontext(&from.context, &to.context); }
}  // namespace

#endif

void prepare(Fiber& fiber, const FiberStack& stack, void (*entry)()) {
  fiber.stack = stack.lowest();
  fiber.stack_bytes = stack.bytes();
  fiber.fake_stack = nullptr;
  // The fiber that used this stack before may have died in the middle of a function, leaving
  // poison.
  if (under_asan()) __asan_unpoison_memory_region(stack.lowest(), stack.bytes());
  if (under_tsan()) fiber.tsan_fiber = __tsan_create_fiber(0);
  set_entry(fiber, stack, entry);
}

void adopt_thread(Fiber& fiber) {
  fiber.stack = nullptr;
  if (under_tsan()) fiber.tsan_fiber = __tsan_get_current_fiber();
}

void retire(Fiber& fiber) {
  if (under_tsan()) __tsan_destroy_fiber(fiber.tsan_fiber);
}

void switch_fiber(Fiber& from, Fiber& to) {
  left = &from;
  if (under_tsan()) __tsan_switch_to_fiber(to.tsan_fiber, kNoHappensBefore);
  if (__sanitizer_start_switch_fiber)
    __sanitizer_start_switch_fiber(&from.fake_stack, to.stack, to.stack_bytes);
  change_stacks(from, to);
  arrive(from.fake_stack);
}

void arrived_in_new_fiber() { arrive(nullptr); }

}  // namespace simt
