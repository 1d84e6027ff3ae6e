#pragma once
// Repairs what fsck finds, while engines work: rebuilds hints, puts lost blocks back, retires
// corrupt ones. Every step is complete in itself, so a repair that is killed anywhere is simply run
// again.

#include <cstddef>

#include "pool/care/fsck.hpp"

namespace kvhive {

struct RepairReport {
  std::size_t retired = 0;         ///< corrupt blocks taken out of service for good
  std::size_t holders = 0;         ///< blocks that dead or unknown processes still held
  std::size_t hints_dropped = 0;   ///< stale, double or out of range
  std::size_t hints_restored = 0;  ///< published blocks the index had lost
  std::size_t free_listed = 0;     ///< free blocks that no process would have found
  std::size_t restamped = 0;       ///< idle blocks put back into the release order
  std::size_t fields = 0;          ///< fields of the control object, and bits beyond table ends

  std::size_t sum() const {
    return retired + holders + hints_dropped + hints_restored + free_listed + restamped + fields;
  }
};

/// Repairs the pool. A block whose word, name, parent or tokens contradict each other is retired,
/// held or not: its bytes stay for the processes that read them, and no match finds it again.
///
/// \param owners  what the keeper knows of the slots. It must give no vacant slot away before this
///                returns: blocks held in a vacant slot's name are released.
/// To be called by one process at a time, which can write all of the pool and read its tokens (the
/// steward).
RepairReport repair(const PoolMemory& memory, const SlotOwners& owners);

}  // namespace kvhive
