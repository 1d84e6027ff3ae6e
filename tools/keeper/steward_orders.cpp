#include "tools/keeper/steward_orders.hpp"

#include <utility>

#include "base/log.hpp"

namespace kvhive {

void sweep(Tables& tables, Connections& connections, std::uint32_t slot) {
  const Peer* steward = tables.peer_with_role(Role::steward);
  if (steward == nullptr) return;
  const Reap order{slot, tables.slots[slot].drops_unheld ? 1u : 0u};
  // A steward that does not take the order is killed; sweep_all() gives the order to the next one.
  if (!send_packet(steward->socket.get(), order)) connections.fence(*steward);
}

void sweep_all(Tables& tables, Connections& connections) {
  for (std::uint32_t slot = 0; slot < kMaxProcesses; ++slot)
    if (tables.slots[slot].use == Slot::Use::unswept) sweep(tables, connections, slot);
}

bool on_reaped(Tables& tables, const Reaped& reaped) {
  if (reaped.slot >= kMaxProcesses) return false;
  spdlog::info("slot {} of {} swept: {} requests under way, {} blocks freed, {} released",
               reaped.slot, tables.slots[reaped.slot].last_owner, reaped.requests, reaped.freed,
               reaped.released);
  tables.slots[reaped.slot] = Slot{.life = tables.slots[reaped.slot].life};
  return true;
}

void on_lost_device(Tables& tables, Connections& connections, const Peer& engine) {
  tables.pool.gpu_memory.check_context();  // under MPS one fault ends the context of all processes
  if (tables.options.asked.gpu_fault == GpuFault::keep) return;
  tables.slots[engine.slot].drops_unheld = true;
  if (tables.options.asked.gpu_fault != GpuFault::drop_all) return;
  for (const auto& [socket, peer] : tables.peers) {
    if (!peer.has_role(Role::engine) || peer.slot == engine.slot) continue;
    tables.slots[peer.slot].drops_unheld = true;
    connections.fence(peer);
  }
}

void request_repair(Tables& tables, Connections& connections, Peer& asker) {
  const Peer* steward = tables.peer_with_role(Role::steward);
  if (!tables.is_ready || steward == nullptr)
    return connections.refuse(
        asker, {Errc::not_running,
                "the daemon is starting or its steward is just being restarted; try again "
                "in a moment"});
  const Repair order{tables.next_ticket++};
  if (!send_packet(steward->socket.get(), order, {}, to_json(tables.slot_owners()).dump()))
    return connections.refuse(
        asker, {Errc::peer_died, "the steward does not listen; try again in a moment"});
  tables.repairs.emplace(order.ticket, asker.socket.get());
}

void on_repaired(Tables& tables, Connections& connections, const Packet& report) {
  const auto found = tables.repairs.find(report.as<Repaired>()->ticket);
  if (found == tables.repairs.end()) return;
  const int asker = found->second;
  tables.repairs.erase(found);
  spdlog::info("pool repaired: {}", report.tail());
  if (asker == -1) return;
  if (!send_packet(asker, RepairDone{}, {}, report.tail())) connections.drop(asker);
}

void refuse_repairs(Tables& tables, Connections& connections) {
  for (const auto& [ticket, asker] : std::exchange(tables.repairs, {})) {
    const auto peer = tables.peers.find(asker);
    if (peer == tables.peers.end()) continue;
    connections.refuse(peer->second,
                       {Errc::peer_died,
                        "the steward died in the middle of the repair, which does no harm; run "
                        "it again"});
  }
}

}  // namespace kvhive
