#pragma once
// Copies that go past the caches: what is not read again soon should not throw out what is.

#include <cstddef>

namespace kvhive {

/// Copies in one run: so the CPU's own prefetchers read fastest. They start anew elsewhere; hence
/// as many bytes of what is copied `next` are fetched meanwhile, null: none.
///
/// \param bytes  a multiple of 64, as is the destination's address
void stream_copy(const std::byte* source, std::byte* destination, std::size_t bytes,
                 const std::byte* next);

/// Makes what this thread has streamed visible to others before whatever it writes next.
void end_streams();

}  // namespace kvhive
