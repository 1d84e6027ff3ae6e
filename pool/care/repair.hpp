#pragma once
// Repairs what fsck finds, while engines work: rebuilds hints, makes lost blocks available again,
// and retires corrupt blocks. Each step is complete in itself: if the repairing process is killed,
// the repair is run again.

#include <cstddef>

#include "pool/care/fsck.hpp"

namespace kvhive {

struct RepairReport {
  std::size_t retired = 0;         ///< corrupt blocks taken out of service for good
  std::size_t holders = 0;         ///< blocks that were held by slots without a process
  std::size_t hints_dropped = 0;   ///< hints that were stale, double or out of range
  std::size_t hints_restored = 0;  ///< published blocks that had no hint in the index
  std::size_t free_listed = 0;     ///< free blocks that were not in the free bitmap
  std::size_t restamped = 0;       ///< published blocks that got a new release stamp
  /// corrupt fields of the control object, bits beyond a table's end, claims of no process
  std::size_t fields = 0;

  std::size_t sum() const {
    return retired + holders + hints_dropped + hints_restored + free_listed + restamped + fields;
  }
};

/// Repairs the pool. A block whose word, name, parent or tokens contradict each other is retired,
/// whether a process holds it or not. Its bytes stay for the processes that are reading them, and
/// no match finds it again.
///
/// Only one process at a time may call this (the steward). It needs write access to the whole pool,
/// and the tokens object.
///
/// \param owners  what the keeper knows about the slots. Blocks that a vacant slot holds are
///                released, so the keeper must give no vacant slot to a process before this returns
RepairReport repair(const PoolMemory& memory, const SlotOwners& owners);

}  // namespace kvhive
