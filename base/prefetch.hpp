#pragma once
// Starts a cache miss early.

namespace kvhive {

/// GCC drops calls to a function that only prefetches, as one without effect; the empty asm
/// statement counts as an effect.
inline void prefetch(const void* address) {
  __builtin_prefetch(address);
  asm volatile("");
}

/// For a line that is needed only once: it stays out of all caches but the nearest.
inline void prefetch_once(const void* address) {
  __builtin_prefetch(address, 0, 0);
  asm volatile("");
}

/// For a line that will be written and that another core may have: it is fetched for ownership, so
/// that the write does not wait a second time.
inline void prefetch_to_write(const void* address) {
#ifdef __x86_64__
  asm volatile("prefetchw %0" : : "m"(*static_cast<const char*>(address)));  // no-op on old CPUs
#else
  __builtin_prefetch(address, 1);
  asm volatile("");
#endif
}

}  // namespace kvhive
