#pragma once
// What the keeper knows, as plain values and descriptors, without lambdas, pointers or running
// code: so that it can be handed to a successor (succession/table_rows.hpp), which needs nothing
// else but a listening socket.

#include <sys/types.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/unique_fd.hpp"
#include "config/resolved_options.hpp"
#include "tools/keeper/channels/channels.hpp"
#include "tools/keeper/children/child.hpp"
#include "tools/keeper/domains.hpp"
#include "tools/keeper/make_pool.hpp"
#include "ipc/control_messages.hpp"
#include "tools/program/slot_owners.hpp"

namespace kvhive {

enum class Role : std::uint8_t { engine, steward, client, inspector };

/// A process at the other end of a connection.
struct Peer {
  UniqueFd socket;
  UniqueFd pidfd;  ///< empty for the keeper's own children: Child has theirs
  pid_t pid = 0;   ///< in the keeper's PID namespace; 0 = the process is not visible there
  uid_t uid = 0;
  std::uint64_t number = 0;                       ///< of the connection; never used twice
  std::chrono::steady_clock::time_point since{};  ///< when it connected
  bool has_spoken = false;                        ///< a packet has come
  bool is_welcome = false;                        ///< its hello was accepted
  bool is_serving = false;                        ///< an engine that has signed in to the pool
  Role role = Role::client;
  std::uint32_t engine = kAnyEngine;  ///< engine: its own number
  std::uint32_t slot = 0;             ///< engine: its process slot in the pool
  ModelId model{};                    ///< engine: that it computes
  std::uint64_t channel = 0;          ///< client: the id of its channel
  bool awaits_channel = false;        ///< client: its channel is being made
  bool wants_tokens = false;          ///< inspector: it asks for the tokens object, too
  /// The welcome is decided and is still to be sent; it may have been, by a keeper that was killed.
  bool is_welcome_due = false;

  /// Whether the process is of another user than the daemon's, and not root's.
  bool is_stranger() const { return uid != geteuid() && uid != 0; }
  bool has_role(Role wanted) const { return is_welcome && role == wanted; }
};

/// One process slot of the pool.
struct Slot {
  /// unswept: the slot's process has ended, and the steward has not yet returned its blocks.
  enum class Use : std::uint8_t { vacant, used, unswept };
  Use use = Use::vacant;
  std::uint32_t life = 0;  ///< how many engines have had the slot (ipc/channel/slot_state.hpp)
  /// True = the sweep of this slot also drops the cached blocks that no process holds.
  bool drops_unheld = false;
  std::string last_owner =
      {};  ///< "engine 0 (pid 4711)", for the log; set when the process has ended
  /// Number of that end, so that it is not mistaken for the end of the slot's next process.
  std::uint64_t death = 0;
  /// Ticket of the last order to sweep it. An earlier order may still be on its way, but the
  /// steward takes them in turn: when it answers the last one, all are done.
  std::uint64_t order = 0;
  bool is_order_due = false;  ///< it is still to be sent
};

/// What an engine's last end has cost. A keeper's successor does not know it.
struct LastEnd {
  pid_t pid = 0;
  std::uint64_t death = 0;                      ///< Slot::death of that end
  std::chrono::system_clock::time_point time;   ///< when the keeper noticed
  std::chrono::steady_clock::time_point since;  ///< the same
  std::optional<std::uint32_t> requests;  ///< it was serving or had waiting; known when it is swept
  std::optional<std::chrono::milliseconds> back_after;  ///< until it served again; none = not yet
};

/// A repair, or other care, that the steward is working on.
struct PendingRepair {
  int asker = -1;                  ///< the inspector's socket; -1 = it has closed
  std::uint64_t asker_ticket = 0;  ///< of its RepairRequest
  Care care = Care::repair;
  bool is_due = true;  ///< the order is still to be sent
};

/// An operator's order that is under way.
struct PendingOrder {
  Order::What what{};
  std::uint32_t engine = 0;
  std::uint32_t starts = 0;        ///< of that engine, when the order came
  int asker = -1;                  ///< the inspector's socket; -1 = it has closed
  std::uint64_t asker_ticket = 0;  ///< of its Order
};

/// What the machine had when it was last looked at. To look takes 0.1 ms, and strangers may ask for
/// channels thousands of times a second.
struct SeenMemory {
  MachineMemory machine;
  std::size_t channels = 0;  ///< bytes that channels had then
  std::chrono::steady_clock::time_point at{};
};

struct Tables {
  pid_t front = 0;          ///< the daemon, as others see it (succession/front.hpp)
  ResolvedOptions options;  ///< make_pool() fills in what the model and the machine decide
  Domains domains;
  MadePool pool;

  std::map<int, Peer> peers;  ///< by socket
  Child steward;
  /// The engines that the keeper starts; the index is the engine's number. One that an operator has
  /// removed keeps its place. Lambdas refer to the elements: there is room for all that may come.
  std::vector<Child> engines;
  std::array<Slot, kMaxProcesses> slots{};
  Channels channels;  ///< an engine's key is its socket
  /// By ticket. As long as there are any, no slot is given to a new engine.
  std::map<std::uint64_t, PendingRepair> repairs;
  std::map<std::uint64_t, PendingOrder> orders;  ///< in the order in which they came
  SeenMemory memory;
  std::uint64_t next_connection = 1;
  std::uint64_t next_ticket = 1;
  std::uint64_t next_death = 1;
  bool is_formatted = false;  ///< the steward has formatted the pool
  bool is_ready = false;      ///< all engines of the keeper have served at the same time once
  bool is_told = false;       ///< so was the user

  // -- not for the successor: what is still to be written down and done ---------------------------
  std::map<std::uint32_t, LastEnd> last_ends{};  ///< by the engine's number
  /// Peers whose rows in the ledger are old: their numbers, and their sockets.
  std::map<std::uint64_t, int> changed_peers;
  std::size_t written_domains = 0;
  /// Sockets of peers whose welcome is due.
  std::vector<int> due_welcomes;

  /// The peer has changed: it is written down at the end of this event.
  void touch(const Peer& peer) { changed_peers.insert_or_assign(peer.number, peer.socket.get()); }
  /// Its welcome is to be sent, once it is written down.
  void owe_welcome(Peer& peer);
  /// Orders the steward, or the next one, to sweep the slot.
  void order_sweep(std::uint32_t slot);

  /// The keeper's own child that this is; null = it is none. A stranger is none: it may have got
  /// the pid of one that is not collected yet, or is about to say hello.
  const Child* child_of(const Peer& peer) const;
  /// The engine that the keeper has started under this number; null = there is none.
  Child* engine_of(std::uint32_t number);
  /// Whether the peer is a guest: an engine that the keeper did not start.
  bool is_guest(const Peer& peer) const;
  Peer* peer_with_role(Role role);
  /// The welcomed peer that is this child; null = there is none.
  Peer* peer_of(pid_t pid);
  /// The client whose channel this is; null = it is gone.
  Peer* client_of(std::uint64_t channel);
  /// Whether there is an engine of this number. An engine that the keeper is about to start again
  /// counts, too.
  bool has_engine(std::uint32_t number) const;
  /// The model that the client asks for: by name, else that of the engine that it asks for, else
  /// the first. Errors: there is no such model, or that engine has another.
  [[nodiscard]] Expected<ModelId> wanted_model(const ClientHello& hello) const;
  /// The lowest number that no engine has. The keeper's own engines keep theirs, running or not.
  std::uint32_t free_engine_number() const;
  SlotOwners slot_owners() const;
};

}  // namespace kvhive
