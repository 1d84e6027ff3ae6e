#pragma once
// Releases the blocks that a dead process held. The holder masks alone say which blocks these are,
// so if the process that sweeps is killed, the sweep is run again.

#include <cstddef>
#include <cstdint>

#include "pool/pool_memory.hpp"

namespace kvhive {

struct ReapReport {
  /// Requests that the process was serving or had waiting. 0 if an earlier sweep was killed just
  /// before its end.
  std::size_t requests = 0;
  /// Blocks that it was filling: their content is incomplete, so they are freed.
  std::size_t freed = 0;
  std::size_t released = 0;  ///< published blocks that it held: they stay, without its holder bit
  std::size_t dropped = 0;   ///< published blocks of the device tier whose content was discarded
};

/// What happens to published blocks of the device tier that no living process holds.
enum class Unheld : std::uint8_t {
  kept,
  dropped,  ///< freed: the dead process had lost its device, and its last kernels may have written
            ///< to any block
};

/// Releases all blocks that the process in slot `dead` held, and makes the slot vacant.
///
/// The caller has seen the process's pidfd fire: its threads have ended, its mappings and its
/// device driver's files are closed. Only one process at a time may call this. The slot must not be
/// given to another process before it returns.
ReapReport reap(const PoolMemory& memory, ProcessSlot dead, Unheld unheld = Unheld::kept);

}  // namespace kvhive
