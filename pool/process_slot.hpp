#pragma once
// A process signs in to its slot of the pool's table, and is signed out when it is dead. The keeper
// decides which process has which slot.

#include "pool/pool_memory.hpp"

namespace kvhive {

/// Enters the calling process as engine `index` into the vacant slot. To be called before it
/// touches a block. Killed on the way, it leaves the slot vacant.
///
/// \param pid  the process number that the keeper knows it by: its own number means nothing outside
///             its PID namespace. 0 = the keeper cannot see the process, and its own number is used
void sign_in(const PoolMemory& memory, ProcessSlot slot, std::uint32_t index,
             std::uint32_t pid = 0);

/// Makes the slot of a dead process vacant. Its sums stay: they are a part of the pool's totals.
/// To be called when its blocks are returned: until then the holder bits have a process to name.
void sign_out(const PoolMemory& memory, ProcessSlot slot);

}  // namespace kvhive
