#pragma once
// What the keeper has its steward do: return the blocks of ended processes ("sweep a slot"), and
// repair the pool. The keeper itself maps nothing; it only knows which processes run.

#include "tools/keeper/connections.hpp"
#include "tools/keeper/tables.hpp"

namespace kvhive {

/// Has a slot swept. Without a steward nothing happens: the next one is told by sweep_all().
void sweep(Tables& tables, Connections& connections, std::uint32_t slot);
/// Has all slots swept that an earlier steward did not get to.
void sweep_all(Tables& tables, Connections& connections);
/// The steward has swept a slot: it can be given away. False = there is no such slot.
[[nodiscard]] bool on_reaped(Tables& tables, const Reaped& reaped);

/// An engine has lost its GPU context. Its kernels could write to every block of the device; the
/// operator's gpu-fault option says which cached blocks are dropped.
void on_lost_device(Tables& tables, Connections& connections, const Peer& engine);

/// Has the pool repaired for `asker`, or refuses it.
void request_repair(Tables& tables, Connections& connections, Peer& asker);
/// The steward has repaired the pool: passes its report on.
void on_repaired(Tables& tables, Connections& connections, const Packet& report);
/// The steward ended: refuses all repairs under way.
void refuse_repairs(Tables& tables, Connections& connections);

}  // namespace kvhive
