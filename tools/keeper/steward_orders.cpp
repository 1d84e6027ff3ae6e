#include "tools/keeper/steward_orders.hpp"

#include <utility>

#include "base/log.hpp"

namespace kvhive {
namespace {

/// ", as pid 17 ordered"; empty if that process has gone.
std::string asked_by(const Tables& tables, int asker) {
  const auto peer = tables.peers.find(asker);
  return peer == tables.peers.end() ? std::string()
                                    : ", as pid " + std::to_string(peer->second.pid) + " ordered";
}

}  // namespace

bool send_due_orders(Tables& tables, Connections& connections) {
  const Peer* steward = tables.peer_with_role(Role::steward);
  if (steward == nullptr || steward->is_welcome_due) return false;
  bool has_sent = false;
  for (std::uint32_t number = 0; number < kMaxProcesses; ++number) {
    Slot& slot = tables.slots[number];
    if (!std::exchange(slot.is_order_due, false)) continue;
    has_sent = true;
    // A steward that does not take an order is killed; the next one is given all of them.
    if (!send_packet(steward->socket.get(),
                     Reap{number, slot.drops_unheld ? 1u : 0u, slot.order})) {
      connections.fence(*steward);
      return true;
    }
  }
  for (auto& [ticket, repair] : tables.repairs) {
    if (!std::exchange(repair.is_due, false)) continue;
    has_sent = true;
    if (!send_packet(steward->socket.get(), Repair{ticket, repair.care}, {},
                     to_json(tables.slot_owners()).dump())) {
      connections.fence(*steward);  // refuse_repairs() follows
      return true;
    }
  }
  return has_sent;
}

void sweep_all(Tables& tables) {
  for (std::uint32_t slot = 0; slot < kMaxProcesses; ++slot)
    if (tables.slots[slot].use == Slot::Use::unswept) tables.order_sweep(slot);
}

bool on_reaped(Tables& tables, const Reaped& reaped) {
  if (reaped.slot >= kMaxProcesses) return false;
  const Slot& slot = tables.slots[reaped.slot];
  if (slot.use != Slot::Use::unswept || slot.order != reaped.ticket) return true;  // an older order
  spdlog::info("slot {} of {} swept: {} requests under way, {} blocks freed, {} released",
               reaped.slot, tables.slots[reaped.slot].last_owner, reaped.requests, reaped.freed,
               reaped.released);
  for (auto& [engine, end] : tables.last_ends)
    if (end.death == slot.death) end.requests = reaped.requests;
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

void request_repair(Tables& tables, Connections& connections, Peer& asker,
                    const RepairRequest& request) {
  const Peer* steward = tables.peer_with_role(Role::steward);
  if (!tables.is_ready || steward == nullptr)
    return connections.refuse(
        asker, {Errc::not_running,
                "the daemon is starting or its steward is just being restarted; try again "
                "in a moment"});
  tables.repairs.emplace(tables.next_ticket++,
                         PendingRepair{asker.socket.get(), request.ticket, request.care});
}

void on_repaired(Tables& tables, Connections& connections, const Packet& report) {
  const auto found = tables.repairs.find(report.as<Repaired>()->ticket);
  if (found == tables.repairs.end()) return;
  const PendingRepair repair = found->second;
  tables.repairs.erase(found);
  spdlog::info("{}{}: {}", repair.care == Care::repair ? "pool repaired" : "prefix cache reset",
               asked_by(tables, repair.asker), report.tail());
  if (repair.asker == -1) return;
  if (!send_packet(repair.asker, RepairDone{repair.asker_ticket}, {}, report.tail()))
    connections.drop(repair.asker);
}

void repeat_orders(Tables& tables) {
  sweep_all(tables);
  for (auto& [ticket, repair] : std::exchange(tables.repairs, {}))
    tables.repairs.emplace(tables.next_ticket++,
                           PendingRepair{repair.asker, repair.asker_ticket, repair.care});
}

void refuse_repairs(Tables& tables, Connections& connections) {
  for (const auto& [ticket, repair] : std::exchange(tables.repairs, {})) {
    const auto peer = tables.peers.find(repair.asker);
    if (peer == tables.peers.end()) continue;
    connections.refuse(
        peer->second,
        {Errc::peer_died, "the steward died in the middle of the " +
                              std::string(repair.care == Care::repair ? "repair" : "reset") +
                              ", which does no harm; run it again"});
  }
}

}  // namespace kvhive
