#pragma once
// Returns what a dead process held. The holder masks say what that was; there is nothing else to
// consult, so the sweep can be interrupted anywhere and simply run again.

#include <cstddef>
#include <cstdint>

#include "pool/pool_memory.hpp"

namespace kvhive {

struct ReapReport {
  std::size_t freed = 0;     ///< blocks it was filling: content incomplete, so they are free
  std::size_t released = 0;  ///< published blocks it held: they stay, without its bit
  std::size_t dropped = 0;   ///< published blocks of the device tier that are gone
};

/// What becomes of published blocks in the device tier that no living process holds.
enum class Unheld : std::uint8_t {
  kept,
  dropped,  ///< the dead one has lost its device: what its kernels wrote last, nobody knows
};

/// Sweeps the pool for `dead` and vacates its slot.
///
/// Call it only once the process is certainly gone (its pidfd has fired: its threads, its mappings
/// and its device driver's files are closed), from one process at a time, and let nobody have the
/// slot before it returns.
ReapReport reap(const PoolMemory& memory, ProcessSlot dead, Unheld unheld = Unheld::kept);

}  // namespace kvhive
