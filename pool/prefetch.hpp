#pragma once
// Starts a cache miss early.

namespace kvhive {

/// GCC takes a function that does nothing but prefetch for one without effect and drops calls to
/// it; the empty statement is an effect.
inline void prefetch(const void* address) {
  __builtin_prefetch(address);
  asm volatile("");
}

/// For a line that is not wanted for long: past all caches but the nearest.
inline void prefetch_once(const void* address) {
  __builtin_prefetch(address, 0, 0);
  asm volatile("");
}

/// For a line about to be written that another core may have: fetched to be owned, so that the
/// write does not wait once more.
inline void prefetch_to_write(const void* address) {
#ifdef __x86_64__
  asm volatile("prefetchw %0" : : "m"(*static_cast<const char*>(address)));  // no-op on old CPUs
#else
  __builtin_prefetch(address, 1);
  asm volatile("");
#endif
}

}  // namespace kvhive
