#pragma once
// The keeper's connections: accepts processes, reads their packets, refuses them, and "fences"
// (closes the connection and kills) an engine or steward that it can no longer talk to.

#include "base/event_loop.hpp"
#include "ipc/protocol.hpp"
#include "tools/keeper/tables.hpp"

namespace kvhive {

class Connections {
 public:
  /// Called when something happens on a connection; the keeper implements it.
  class Events {
   public:
    virtual ~Events() = default;
    /// A complete packet arrived, with all its descriptors. The callee may drop the peer.
    virtual void on_packet(Peer& peer, Packet packet) = 0;
    /// A peer whose hello was accepted is gone. It has been removed from the tables.
    virtual void on_gone(const Peer& peer) = 0;
  };

  Connections(Tables& tables, EventLoop& loop, Events& events);

  /// Accepts on this listening socket from now on.
  void listen(int listener);

  /// Takes the pidfd that a hello must carry and watches it. For its own children the keeper has a
  /// pidfd already. False = the peer was refused or has ended.
  bool identify(Peer& peer, Packet& hello);

  /// Sends the reason, then calls hang_up().
  void refuse(Peer& peer, const Error& error);
  /// Ends the connection. An engine or steward may still be writing to the pool, so it is fenced,
  /// and stays in the tables until its pidfd shows that it has ended.
  void hang_up(Peer& peer);
  /// Removes a peer that has ended, or that does not map the pool for writing, and closes its
  /// socket.
  void drop(int socket);
  /// Closes the connection of an engine or steward and kills it. Its blocks are returned after its
  /// pidfd has fired. A process that is not visible in the keeper's PID namespace cannot be
  /// signalled; it only sees its connection close.
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
