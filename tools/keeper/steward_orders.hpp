#pragma once
// The orders that the keeper gives its steward: "sweep a slot" (return the blocks that an ended
// process held), and repair the pool. The keeper does neither itself, because it maps nothing; it
// only knows which processes run.

#include "tools/keeper/connections.hpp"
#include "tools/keeper/tables.hpp"

namespace kvhive {

/// Sends the orders that are due, if there is a steward (Tables::order_sweep(), request_repair()).
/// Called when they are written down: a steward must not get an order that a successor does not
/// know of. Returns whether there were any.
bool send_due_orders(Tables& tables, Connections& connections);
/// Orders a new steward to sweep all slots that no earlier steward has reported as swept.
void sweep_all(Tables& tables);
/// For a successor, which does not know what the steward got: gives all orders again, with new
/// tickets.
void repeat_orders(Tables& tables);
/// The steward has swept a slot: marks the slot as vacant, if that was the last order to sweep it.
/// False = there is no such slot.
[[nodiscard]] bool on_reaped(Tables& tables, const Reaped& reaped);

/// Called when an engine has lost its GPU context. Its kernels may have written to any block of the
/// device tier. The operator's gpu-fault option decides which cached blocks are dropped.
void on_lost_device(Tables& tables, Connections& connections, const Peer& engine);

/// Orders the steward to repair the pool or reset its cache, for the inspector `asker`; refuses the
/// asker if that is not possible.
void request_repair(Tables& tables, Connections& connections, Peer& asker,
                    const RepairRequest& request);
/// The steward has repaired the pool: sends its report to the inspector that asked.
void on_repaired(Tables& tables, Connections& connections, const Packet& report);
/// The steward has ended: refuses all inspectors whose repairs are not finished.
void refuse_repairs(Tables& tables, Connections& connections);

}  // namespace kvhive
