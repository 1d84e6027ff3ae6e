#pragma once
// The keeper's connections: accepts processes, reads their packets, refuses them, and ends
// ("fences") a process of the pool that can no longer be talked to.

#include "base/event_loop.hpp"
#include "ipc/protocol.hpp"
#include "tools/keeper/tables.hpp"

namespace kvhive {

class Connections {
 public:
  /// What the router does about connections.
  class Events {
   public:
    virtual ~Events() = default;
    /// A packet arrived, whole and with all its descriptors. May drop the peer.
    virtual void on_packet(Peer& peer, Packet packet) = 0;
    /// A peer whose hello had been accepted is gone; it is no longer in the tables.
    virtual void on_gone(const Peer& peer) = 0;
  };

  Connections(Tables& tables, EventLoop& loop, Events& events);

  /// Accepts on this listening socket from now on.
  void listen(int listener);

  /// Takes the pidfd that a hello must carry. The keeper's own children are known without it.
  /// False = the peer was refused or has ended.
  bool identify(Peer& peer, Packet& hello);

  /// Sends the reason, then hangs up.
  void refuse(Peer& peer, const Error& error);
  /// Ends the connection. An engine or steward may still be writing to the pool: it is fenced, and
  /// stays in the tables until its pidfd says that it has ended.
  void hang_up(Peer& peer);
  /// Forgets a peer that has ended, or was never accepted.
  void drop(int socket);
  /// Kills a process of the pool. Its blocks return when its pidfd has fired. A process that is not
  /// visible in the keeper's PID namespace cannot be signalled: it sees its connection close.
  void fence(const Peer& peer);

 private:
  void accept(int listener);
  bool has_room_for(const Peer& peer) const;
  void receive(int socket);

  Tables& tables_;
  EventLoop& loop_;
  Events& events_;
  /// Reserve descriptor. Closed when accept() fails with EMFILE, so that one peer can be accepted
  /// and refused; else it would stay in the queue and wake the loop for ever.
  UniqueFd reserve_;
};

}  // namespace kvhive
