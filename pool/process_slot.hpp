#pragma once
// A process' seat in the pool's table. The keeper says which one is whose; the process itself signs
// in.

#include "pool/pool_memory.hpp"

namespace kvhive {

/// Signs the calling process in as engine `index`, with fresh counters. To be done before it
/// touches a block.
///
/// \param pid  what the keeper knows it by: our own idea is of no use outside our PID namespace.
///             0 = the keeper cannot see us, and our own has to do
void sign_in(const PoolMemory& memory, ProcessSlot slot, std::uint32_t index,
             std::uint32_t pid = 0);

}  // namespace kvhive
