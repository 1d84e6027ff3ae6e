#pragma once
// A block goes from one domain to another.

#include "pool/pool_memory.hpp"

namespace kvhive {

/// Zeroes what another domain left in a block of ours, and only then is it `domain`'s: should we be
/// killed in between, it is still the other's, and whoever gets it next begins again. What only a
/// device can reach the device has zeroed before.
void hand_over(const PoolMemory& memory, BlockId block, DomainId domain);

}  // namespace kvhive
