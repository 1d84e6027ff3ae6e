#pragma once
// Counts how many blocks of a tier are held. Each process adds 1 to its counter when it changes a
// block's holder mask from empty to not empty, and subtracts 1 for the opposite. The number of held
// blocks is the sum over all slots plus a correction, because a process can be killed before it
// counts a change. The number is a hint: the block words are the truth.

#include "pool/pool_memory.hpp"

namespace kvhive {

/// The sum over all slots, without the correction. If a counter is corrupt, the sum wraps and does
/// not overflow.
inline std::int64_t counted_used(const ControlBlock& control, Tier tier) {
  std::uint64_t sum = 0;
  for (const ProcessEntry& process : control.processes)
    sum += static_cast<std::uint64_t>(
        process.counters.used[std::size_t(tier)].load(std::memory_order_relaxed));
  return static_cast<std::int64_t>(sum);
}

/// Adds to the counter of one slot. Only the slot's process may call it, and the reaper once that
/// process is dead.
inline void add_used(std::atomic<std::int64_t>& used, std::int64_t change) {
  const auto now = static_cast<std::uint64_t>(used.load(std::memory_order_relaxed));
  used.store(static_cast<std::int64_t>(now + static_cast<std::uint64_t>(change)),
             std::memory_order_relaxed);
}

/// Sets the correction so that sum and correction together give `truth`, the number of held blocks
/// that the caller has counted. `sum_before` is the sum before the caller counted them. If the sum
/// is different now, a process has worked meanwhile: sets nothing and returns false.
[[nodiscard]] bool correct_used(ControlBlock& control, Tier tier, std::int64_t sum_before,
                                std::int64_t truth);

/// Counts the held blocks and sets the correction. Gives up after four attempts if other processes
/// keep working meanwhile. The number of held blocks is then wrong by the one block that a dead
/// process did not count.
void correct_used(const PoolMemory& memory, Tier tier);

}  // namespace kvhive
