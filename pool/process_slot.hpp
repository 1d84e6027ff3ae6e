#pragma once
// A process' seat in the pool's table. The keeper says which one is whose; the process itself signs
// in.

#include "pool/pool_memory.hpp"

namespace kvhive {

/// Signs the calling process in as engine `index`, with fresh counters. To be done before it
/// touches a block.
void sign_in(const PoolMemory& memory, ProcessSlot slot, std::uint32_t index);

}  // namespace kvhive
