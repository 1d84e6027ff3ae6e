#pragma once
// The orders that the keeper gives its steward: "sweep a slot" (return the blocks that an ended
// process held), and repair the pool. The keeper does neither itself, because it maps nothing; it
// only knows which processes run.

#include "tools/keeper/connections.hpp"
#include "tools/keeper/tables.hpp"

namespace kvhive {

/// Orders the steward to sweep a slot. Without a steward it does nothing: sweep_all() orders it
/// when the next steward has started.
void sweep(Tables& tables, Connections& connections, std::uint32_t slot);
/// Orders a new steward to sweep all slots that no earlier steward has reported as swept.
void sweep_all(Tables& tables, Connections& connections);
/// The steward has swept a slot: marks the slot as vacant. False = there is no such slot.
[[nodiscard]] bool on_reaped(Tables& tables, const Reaped& reaped);

/// Called when an engine has lost its GPU context. Its kernels may have written to any block of the
/// device tier. The operator's gpu-fault option decides which cached blocks are dropped.
void on_lost_device(Tables& tables, Connections& connections, const Peer& engine);

/// Orders the steward to repair the pool, for the inspector `asker`; refuses the asker if that is
/// not possible.
void request_repair(Tables& tables, Connections& connections, Peer& asker);
/// The steward has repaired the pool: sends its report to the inspector that asked.
void on_repaired(Tables& tables, Connections& connections, const Packet& report);
/// The steward has ended: refuses all inspectors whose repairs are not finished.
void refuse_repairs(Tables& tables, Connections& connections);

}  // namespace kvhive
