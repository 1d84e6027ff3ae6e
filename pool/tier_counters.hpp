#pragma once
// How many blocks of a tier are in use: a sum of what every process counts for itself, plus a
// correction for what dead ones could not count any more. A hint; the words are the truth.

#include "pool/pool_memory.hpp"

namespace kvhive {

/// The sum. Wraps instead of overflowing, should a counter be damaged.
inline std::int64_t counted_used(const ControlBlock& control, Tier tier) {
  std::uint64_t sum = 0;
  for (const ProcessEntry& process : control.processes)
    sum += static_cast<std::uint64_t>(
        process.counters.used[std::size_t(tier)].load(std::memory_order_relaxed));
  return static_cast<std::int64_t>(sum);
}

/// Of one's own part of the sum.
inline void add_used(std::atomic<std::int64_t>& used, std::int64_t change) {
  const auto now = static_cast<std::uint64_t>(used.load(std::memory_order_relaxed));
  used.store(static_cast<std::int64_t>(now + static_cast<std::uint64_t>(change)),
             std::memory_order_relaxed);
}

/// Says that `truth` blocks are held, if the sum still is what it was before they were counted.
bool correct_used(ControlBlock& control, Tier tier, std::int64_t sum_before, std::int64_t truth);

/// Makes the correction tell the truth again; gives up if others keep working meanwhile (the error
/// left is then the one transition a dead process may not have got to count).
void correct_used(const PoolMemory& memory, Tier tier);

}  // namespace kvhive
