#pragma once
// Moves a block from one domain to another.

#include "pool/pool_memory.hpp"

namespace kvhive {

/// Zeroes the bytes of a block that this process is filling, and then writes `domain` into its
/// descriptor. If the process is killed in between, the descriptor still names the old domain, and
/// the next process that takes the block zeroes it again. If only a device can write the bytes, the
/// device has zeroed them before this call.
void change_domain(const PoolMemory& memory, BlockId block, DomainId domain);

}  // namespace kvhive
