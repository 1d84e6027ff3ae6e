#pragma once
// How many blocks of a tier are held. Each process counts the blocks whose mask it changes from
// empty to not empty, minus the opposite; the sum over all slots, plus a correction for what dead
// processes did not get to count, is the number. A hint: the block words are the truth.

#include "pool/pool_memory.hpp"

namespace kvhive {

/// The sum, without the correction. Wraps instead of overflowing, should a counter be corrupt.
inline std::int64_t counted_used(const ControlBlock& control, Tier tier) {
  std::uint64_t sum = 0;
  for (const ProcessEntry& process : control.processes)
    sum += static_cast<std::uint64_t>(
        process.counters.used[std::size_t(tier)].load(std::memory_order_relaxed));
  return static_cast<std::int64_t>(sum);
}

/// Adds to one slot's part of the sum. Only the slot's process may (and the reaper, once it is
/// dead).
inline void add_used(std::atomic<std::int64_t>& used, std::int64_t change) {
  const auto now = static_cast<std::uint64_t>(used.load(std::memory_order_relaxed));
  used.store(static_cast<std::int64_t>(now + static_cast<std::uint64_t>(change)),
             std::memory_order_relaxed);
}

/// Sets the correction so that `truth` blocks are held, if the sum is still what it was before they
/// were counted; false if it is not.
[[nodiscard]] bool correct_used(ControlBlock& control, Tier tier, std::int64_t sum_before,
                                std::int64_t truth);

/// Counts the held blocks and sets the correction. Gives up if other processes keep working
/// meanwhile; the number is then wrong by the one block that a dead process did not get to count.
void correct_used(const PoolMemory& memory, Tier tier);

}  // namespace kvhive
