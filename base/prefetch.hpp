#pragma once
// Prefetches: start to load a cache line before it is needed.

namespace kvhive {

/// Prefetches the cache line of `address`. The empty asm statement keeps GCC from removing calls of
/// this function, which otherwise has no effect that GCC knows of.
inline void prefetch(const void* address) {
  __builtin_prefetch(address);
  asm volatile("");
}

/// For a line that is needed only once: it is loaded only into the nearest cache.
inline void prefetch_once(const void* address) {
  __builtin_prefetch(address, 0, 0);
  asm volatile("");
}

/// For a line that will be written and that another core may have in its cache: the line is loaded
/// with the right to write, so that the write does not have to wait for it.
inline void prefetch_to_write(const void* address) {
#ifdef __x86_64__
  asm volatile("prefetchw %0" : : "m"(*static_cast<const char*>(address)));  // no-op on old CPUs
#else
  __builtin_prefetch(address, 1);
  asm volatile("");
#endif
}

}  // namespace kvhive
