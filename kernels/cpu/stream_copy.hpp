#pragma once
// Copies that bypass the caches, so that data that is not read again soon does not evict data that
// is.

#include <cstddef>

#include "kernels/copy_way.hpp"

namespace kvhive {

/// At a new source the CPU's prefetchers must start anew; so this call also prefetches as many
/// bytes at `next` (null: none). With CopyWay::one_run they need no help where the source goes on.
///
/// \param bytes a multiple of 64; so is the destination's address
void stream_copy(const std::byte* source, std::byte* destination, std::size_t bytes,
                 const std::byte* next, CopyWay way);

/// Makes all that this thread has streamed visible to other threads before its next store.
void end_streams();

}  // namespace kvhive
