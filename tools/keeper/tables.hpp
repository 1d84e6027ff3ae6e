#pragma once
// What the keeper knows, as plain values and descriptors: no lambda, no pointer, nothing that runs.
// A keeper that takes over from another one needs this and a listening socket.

#include <sys/types.h>

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "base/unique_fd.hpp"
#include "config/resolved_options.hpp"
#include "tools/keeper/channels.hpp"
#include "tools/keeper/child.hpp"
#include "tools/keeper/domains.hpp"
#include "tools/keeper/make_pool.hpp"
#include "tools/program/slot_owners.hpp"

namespace kvhive {

enum class Role : std::uint8_t { engine, steward, client, inspector };

/// A process at the other end of a connection.
struct Peer {
  UniqueFd socket;
  UniqueFd pidfd;  ///< only of a process that the keeper did not start itself
  pid_t pid = 0;   ///< in the keeper's PID namespace; 0 = it is not visible there
  uid_t uid = 0;
  bool is_welcome = false;  ///< its hello was accepted
  bool is_serving = false;  ///< an engine that has signed in to the pool
  Role role = Role::client;
  std::uint32_t engine = kAnyEngine;  ///< an engine's own number, or the one that a client wants
  std::uint32_t slot = 0;             ///< an engine's process slot in the pool
  std::uint64_t channel = 0;          ///< a client's

  bool has_role(Role wanted) const { return is_welcome && role == wanted; }
};

/// One process slot of the pool.
struct Slot {
  enum class Use : std::uint8_t { vacant, used, unswept };
  Use use = Use::vacant;
  /// When the slot is swept, the cached blocks that no process holds are dropped.
  bool drops_unheld = false;
  std::string last_owner;  ///< "engine 0 (pid 4711)", for the log; set when the process has ended
};

struct Tables {
  ResolvedOptions options;  ///< make_pool() completes them
  Domains domains;
  MadePool pool;

  std::map<int, Peer> peers;  ///< by socket
  Child steward;
  std::vector<Child> engines;  ///< by number; those that the keeper starts. Never resized later
  std::array<Slot, kMaxProcesses> slots{};
  Channels channels;  ///< engines by socket
  /// Repairs that the steward was asked for, by ticket: the socket that asked, or -1 if it has
  /// closed. No slot is given away as long as there are any.
  std::map<std::uint64_t, int> repairs;
  std::uint64_t next_ticket = 1;
  bool is_formatted = false;  ///< the pool
  bool is_ready = false;      ///< all engines have served

  /// The keeper's own child with this pid; null = there is none.
  const Child* child_of(pid_t pid) const;
  /// An engine that the keeper did not start.
  bool is_guest(const Peer& peer) const;
  Peer* peer_with_role(Role role);
  /// The welcomed peer that is this child; null = there is none.
  Peer* peer_of(pid_t pid);
  /// Whether a client may ask for this engine. One that the keeper starts again counts, too.
  bool has_engine(std::uint32_t number) const;
  /// The first number from the keeper's own engines' on that no engine has.
  std::uint32_t free_engine_number() const;
  SlotOwners slot_owners() const;
};

}  // namespace kvhive
