#pragma once
// A process signs in to its slot in the pool's table of processes. The reaper signs it out when it
// is dead. The keeper decides which process has which slot.

#include "pool/pool_memory.hpp"

namespace kvhive {

/// Enters the calling process as engine `index` into the vacant slot. The process calls this before
/// it takes or pins a block. If it is killed on the way, the slot stays vacant.
///
/// \param pid  the process's pid in the keeper's PID namespace (its own pid may be of another
///             namespace). 0 = the keeper cannot see the process; its own pid is entered
void sign_in(const PoolMemory& memory, ProcessSlot slot, std::uint32_t index,
             std::uint32_t pid = 0);

/// Makes the slot of a dead process vacant. Its counters of kind `sum` stay, because they are a
/// part of the pool's totals. The caller has released the process's blocks before: as long as
/// holder bits name the slot, it must not be vacant.
void sign_out(const PoolMemory& memory, ProcessSlot slot);

}  // namespace kvhive
