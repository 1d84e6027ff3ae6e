#include "tools/keeper/tables.hpp"

#include <algorithm>

namespace kvhive {

void Tables::owe_welcome(Peer& peer) {
  peer.is_welcome_due = true;
  due_welcomes.push_back(peer.socket.get());
  touch(peer);
}

void Tables::order_sweep(std::uint32_t slot) {
  slots[slot].order = next_ticket++;
  slots[slot].is_order_due = true;
}

const Child* Tables::child_of(const Peer& peer) const {
  const pid_t pid = peer.pid;
  if (pid == 0 || peer.is_stranger()) return nullptr;
  if (steward.pid == pid) return &steward;
  const auto engine = std::find_if(engines.begin(), engines.end(),
                                   [pid](const Child& child) { return child.pid == pid; });
  return engine == engines.end() ? nullptr : &*engine;
}

Child* Tables::engine_of(std::uint32_t number) {
  if (number >= engines.size()) return nullptr;
  Child& engine = engines[number];
  return engine.wanted == Wanted::removed && !engine.is_running() ? nullptr : &engine;
}

bool Tables::is_guest(const Peer& peer) const {
  return peer.has_role(Role::engine) && child_of(peer) == nullptr;
}

Peer* Tables::peer_with_role(Role role) {
  for (auto& [socket, peer] : peers)
    if (peer.has_role(role)) return &peer;
  return nullptr;
}

Peer* Tables::peer_of(pid_t pid) {
  for (auto& [socket, peer] : peers)
    if (peer.pid == pid && peer.is_welcome && !peer.is_stranger()) return &peer;
  return nullptr;
}

Peer* Tables::client_of(std::uint64_t channel) {
  for (auto& [socket, peer] : peers)
    if (peer.has_role(Role::client) && peer.channel == channel) return &peer;
  return nullptr;
}

bool Tables::has_engine(std::uint32_t number) const {
  if (number < engines.size() && engines[number].wanted != Wanted::removed) return true;
  return std::any_of(peers.begin(), peers.end(), [number](const auto& entry) {
    return entry.second.has_role(Role::engine) && entry.second.engine == number;
  });
}

Expected<ModelId> Tables::wanted_model(const ClientHello& hello) const {
  const std::string name = hello.model.str();
  const auto named = pool.find(name);
  if (!name.empty() && !named)
    return failure(Errc::not_found,
                   "model '" + name + "' is not served here; there are: " + pool.names());
  if (hello.engine == kAnyEngine) return named.value_or(ModelId{});
  ModelId model;
  if (hello.engine < engines.size()) model = engines[hello.engine].model;
  for (const auto& [socket, peer] : peers)
    if (peer.has_role(Role::engine) && peer.engine == hello.engine) model = peer.model;
  if (!named || *named == model) return model;
  return failure(Errc::bad_argument, "engine " + std::to_string(hello.engine) + " serves model '" +
                                         pool.models[model.value].name + "', not '" + name +
                                         "'; name another engine, or none");
}

std::uint32_t Tables::free_engine_number() const {
  auto number = static_cast<std::uint32_t>(engines.size());
  while (has_engine(number)) ++number;
  return number;
}

SlotOwners Tables::slot_owners() const {
  SlotOwners owners{};
  for (std::uint32_t slot = 0; slot < kMaxProcesses; ++slot)
    if (slots[slot].use == Slot::Use::unswept) owners[slot].use = SlotOwner::Use::unswept;
  for (const auto& [socket, peer] : peers)
    if (peer.has_role(Role::engine))
      owners[peer.slot] = {SlotOwner::Use::used, static_cast<std::uint32_t>(peer.pid)};
  return owners;
}

}  // namespace kvhive
