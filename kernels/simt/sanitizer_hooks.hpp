#pragma once
// The engine's calls into sanitizers. The engine itself is compiled without them, so that its
// bookkeeping is not reported as accesses of a kernel. The hooks are weak symbols, so that one
// engine works in plain, AddressSanitizer and ThreadSanitizer programs.

#include <cstddef>

extern "C" {
#define SIMT_WEAK __attribute__((weak))
SIMT_WEAK void __sanitizer_start_switch_fiber(void** fake_stack, const void* bottom,
                                              std::size_t bytes);
SIMT_WEAK void __sanitizer_finish_switch_fiber(void* fake_stack, const void** bottom,
                                               std::size_t* bytes);
SIMT_WEAK void __asan_poison_memory_region(const volatile void* address, std::size_t bytes);
SIMT_WEAK void __asan_unpoison_memory_region(const volatile void* address, std::size_t bytes);
SIMT_WEAK void* __tsan_get_current_fiber();
SIMT_WEAK void* __tsan_create_fiber(unsigned flags);
SIMT_WEAK void __tsan_destroy_fiber(void* fiber);
SIMT_WEAK void __tsan_switch_to_fiber(void* fiber, unsigned flags);
SIMT_WEAK void __tsan_acquire(void* address);
SIMT_WEAK void __tsan_release(void* address);
#undef SIMT_WEAK
}

namespace simt {

inline constexpr unsigned kNoHappensBefore = 1;  // __tsan_switch_to_fiber_no_sync

inline bool under_asan() { return __asan_poison_memory_region != nullptr; }
inline bool under_tsan() { return __tsan_create_fiber != nullptr; }

inline void acquire(void* address) {
  if (__tsan_acquire) __tsan_acquire(address);
}
inline void release(void* address) {
  if (__tsan_release) __tsan_release(address);
}

}  // namespace simt
