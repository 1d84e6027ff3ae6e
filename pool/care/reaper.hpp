#pragma once
// Returns what a dead process held. The holder masks alone say what that was, so a sweep that is
// killed anywhere is simply run again.

#include <cstddef>
#include <cstdint>

#include "pool/pool_memory.hpp"

namespace kvhive {

struct ReapReport {
  /// Requests that the process was serving or had waiting. 0 if an earlier sweep was killed at its
  /// end.
  std::size_t requests = 0;
  std::size_t freed = 0;     ///< blocks it was filling: content incomplete, so they are free
  std::size_t released = 0;  ///< published blocks it held: they stay, without its bit
  std::size_t dropped = 0;   ///< published blocks of the device tier whose content was discarded
};

/// What happens to published blocks of the device tier that no living process holds.
enum class Unheld : std::uint8_t {
  kept,
  dropped,  ///< the dead process had lost its device: its last kernels may have written anywhere
};

/// Sweeps the pool for `dead` and vacates its slot.
///
/// To be called only after the process's pidfd has fired (its threads have ended, its mappings and
/// its device driver's files are closed), by one process at a time, and before the slot is given to
/// another process.
ReapReport reap(const PoolMemory& memory, ProcessSlot dead, Unheld unheld = Unheld::kept);

}  // namespace kvhive
