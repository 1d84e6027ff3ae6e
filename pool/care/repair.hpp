#pragma once
// Mends what fsck finds, while engines work: rebuilds hints, puts lost blocks back, takes damaged
// ones out of service. Every step is right by itself, so whoever runs it may be killed anywhere and
// simply run it again.

#include <cstddef>

#include "pool/care/fsck.hpp"

namespace kvhive {

struct RepairReport {
  std::size_t retired = 0;         ///< damaged blocks taken out of service for good
  std::size_t holders = 0;         ///< blocks that dead or unknown processes still held
  std::size_t hints_dropped = 0;   ///< dangling, double or out of range
  std::size_t hints_restored = 0;  ///< published blocks the index had lost
  std::size_t free_listed = 0;     ///< free blocks nobody would have found
  std::size_t restamped = 0;       ///< idle blocks put back into the release order
  std::size_t fields = 0;          ///< of the control object, and bits beyond the ends of tables

  std::size_t sum() const {
    return retired + holders + hints_dropped + hints_restored + free_listed + restamped + fields;
  }
};

/// Repairs the pool. A block whose word, name, parent or tokens do not fit each other is retired,
/// held or not: its bytes stay what they are for whoever reads them, and nobody finds it again.
///
/// \param owners  what the keeper knows of the slots. No vacant slot may be given away before this
///                returns: what is held in its name is taken for damage.
/// From one process at a time, which may write all the pool and see its tokens (the steward).
RepairReport repair(const PoolMemory& memory, const SlotOwners& owners);

}  // namespace kvhive
