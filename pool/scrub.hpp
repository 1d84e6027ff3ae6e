#pragma once
// Taking a block from one domain to another.

#include "pool/pool_memory.hpp"

namespace kvhive {

/// Zeroes the bytes of a block that this process is filling, and then writes `domain` into its
/// descriptor. Killed in between, the block still names the old domain, and the next process that
/// takes it zeroes it again. Bytes that only a device can write, the device must have zeroed
/// before.
void change_domain(const PoolMemory& memory, BlockId block, DomainId domain);

}  // namespace kvhive
