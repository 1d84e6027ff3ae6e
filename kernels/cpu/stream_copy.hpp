#pragma once
// Copies that bypass the caches, so that data that is not read again soon does not evict data that
// is.

#include <cstddef>

namespace kvhive {

/// Copies in one run, which the CPU's own prefetchers read fastest. They must start anew at the
/// next source; so this call also prefetches as many bytes at `next` (null: none).
///
/// \param bytes a multiple of 64; so is the destination's address
void stream_copy(const std::byte* source, std::byte* destination, std::size_t bytes,
                 const std::byte* next);

/// Makes all that this thread has streamed visible to other threads before its next store.
void end_streams();

}  // namespace kvhive
