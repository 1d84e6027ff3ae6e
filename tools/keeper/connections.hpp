#pragma once
// The keeper's connections: accepts processes, reads their packets, refuses them, and "fences"
// (closes the connection and kills) an engine or steward that it can no longer talk to.
//
// A process of another user than the daemon's is a stranger. What strangers can take is limited
// (ConnectionLimits), their descriptors are never received, and a stranger that says nothing is
// sent away.

#include <chrono>
#include <functional>

#include "base/loop/event_loop.hpp"
#include "ipc/protocol.hpp"
#include "tools/keeper/strangers/burial.hpp"
#include "tools/keeper/strangers/unread_answers.hpp"
#include "tools/keeper/succession/ledger.hpp"
#include "tools/keeper/tables.hpp"

namespace kvhive {

struct ConnectionLimits {
  std::size_t of_user = 256;           ///< connections of one stranger's user
  std::size_t silent_of_user = 8;      ///< of these, how many may not have said hello yet
  std::size_t silent_of_all = 64;      ///< the same for all strangers together
  std::size_t kept_for_owner = 64;     ///< descriptors that only the daemon's own user and root get
  std::chrono::seconds for_hello{10};  ///< then a silent connection is closed
  UnreadAnswers::Limits unread;        ///< of strangers
};

/// The limits for a daemon with so many descriptors (ulimit -n).
ConnectionLimits limits_for(std::uint64_t descriptors);

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
    /// Calls `action` when no row of the ledger names what was dropped any more.
    virtual void after_commit(std::function<void()> action) { action(); }
  };

  Connections(Tables& tables, EventLoop& loop, Events& events, const ConnectionLimits& limits);
  /// Leaves strangers' connections open, for the keeper ends now: the kernel closes them with the
  /// process. Before Linux 6.16 their unread packets may carry descriptors whose close takes long.
  ~Connections();

  /// Accepts on this listening socket from now on.
  void listen(int listener);
  /// Receives packets there from now on.
  void receive_into(Inbox& inbox) { inbox_ = &inbox; }

  // For a successor. Takes a connection that was accepted and that no row names; watches one that
  // is in the tables; and handles the packet that was taken and not finished.
  void adopt(UniqueFd socket);
  void resume(Peer& peer);
  void finish_inbox();

  /// Finds out the pidfd of a process that has said hello, and watches it. For its own children the
  /// keeper has a pidfd already. False = the peer was refused or has ended.
  bool identify(Peer& peer, Packet& hello);

  /// Whether the peer may be sent an answer with descriptors. Call answered() when it was sent.
  [[nodiscard]] Expected<void> may_answer(const Peer& peer);
  void answered(const Peer& peer);

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
  [[nodiscard]] Expected<void> check_user(const Peer& peer) const;
  void make_room_for_silent(const Peer& peer);
  void expect_hello(Peer& peer);
  void close_late();
  void take(UniqueFd socket, const ucred& credentials);
  void receive(int socket);
  [[nodiscard]] Expected<std::optional<Packet>> next_packet(int socket);
  [[nodiscard]] Expected<std::optional<Packet>> packet_in_inbox();
  void handle(Peer& peer, Expected<std::optional<Packet>> packet);
  void turn_away(UniqueFd socket, const Error& error);
  void close_strangers(UniqueFd socket);
  [[nodiscard]] Expected<UniqueFd> pidfd_for(const Peer& peer, Packet& hello) const;

  Tables& tables_;
  EventLoop& loop_;
  Events& events_;
  ConnectionLimits limits_;
  Burial burial_;
  UnreadAnswers unread_;
  Inbox* inbox_ = nullptr;
  bool expects_hellos_ = false;  ///< the timer for close_late() is set
  /// Reserve descriptor. Closed when accept() fails with EMFILE, so that one peer can be accepted
  /// and refused; else it would stay in the queue and wake the loop for ever.
  UniqueFd reserve_;
};

}  // namespace kvhive
