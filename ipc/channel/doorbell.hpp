#pragma once
// Doorbells: how the two ends of a channel wake each other. A client cannot harm an engine with
// them, whatever it does with its end:
//  - The client rings an eventfd. Whether an eventfd blocks is a property of the open file, which
//    the client shares and can change. So engines never read or write it: they watch it for edges
//    (EventLoop::watch_edges).
//  - The engine rings by sending a byte over a pair of sockets; each call says by a flag that it
//    must not block. The client's end cannot send: the engine would have to close descriptors that
//    came with a packet, and closing can take as long as the sender likes (SO_LINGER, FUSE).
//
// A pipe would not do. A process that reads or writes a pipe holds its lock while memory is copied,
// and a client can choose memory that takes for ever to arrive (FUSE).

#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdint>
#include <memory>
#include <utility>

#include "base/expected.hpp"
#include "base/unique_fd.hpp"

namespace kvhive {

/// For a client to ring; client and engines have the same open file.
[[nodiscard]] inline Expected<UniqueFd> make_engine_bell() {
  UniqueFd bell{eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
  if (!bell) return os_failure("eventfd");
  return bell;
}

/// Called by the client. Every call is an edge.
inline void ring_engine(int bell) {
  const std::uint64_t once = 1;
  [[maybe_unused]] const ssize_t written = write(bell, &once, sizeof once);
}

/// For an engine to ring. After ring_client(engine_end), poll() finds `client_end` readable.
struct ClientBell {
  UniqueFd engine_end, client_end;
};
[[nodiscard]] inline Expected<ClientBell> make_client_bell() {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) != 0)
    return os_failure("socketpair");
  ClientBell bell{UniqueFd(ends[0]), UniqueFd(ends[1])};
  if (shutdown(bell.engine_end.get(), SHUT_RD) != 0) return os_failure("shutdown");
  return bell;
}

/// Never blocks. If the buffer is full, the client has unread rings already and will wake.
inline void ring_client(int engine_end) {
  const char ring = 1;
  [[maybe_unused]] const ssize_t sent = send(engine_end, &ring, 1, MSG_DONTWAIT | MSG_NOSIGNAL);
}

/// How an engine wakes the client of one channel. In the thread that rings, the kernel wakes all
/// that the client hangs on its end of the bell: hundreds of thousands of epolls, or a signal for
/// each of thousands of processes. So strangers are not rung by a thread that serves others
/// (ipc/channel/bell_ringers.hpp).
class ClientRing {
 public:
  virtual ~ClientRing() = default;
  /// Wakes the client, now or soon. Never waits. Any thread may call it.
  virtual void ring() = 0;
  /// Closes a descriptor that the client has, too. Like a ring, this wakes what hangs on it.
  virtual void close(UniqueFd shared) = 0;
};

/// Rings in the caller's thread: for clients that could harm the engine anyway.
class DirectRing : public ClientRing {
 public:
  explicit DirectRing(UniqueFd engine_end) : engine_end_(std::move(engine_end)) {}
  void ring() override { ring_client(engine_end_.get()); }
  void close(UniqueFd /*shared*/) override {}

 private:
  UniqueFd engine_end_;
};
inline std::unique_ptr<ClientRing> direct_ring(UniqueFd engine_end) {
  return std::make_unique<DirectRing>(std::move(engine_end));
}

/// Reads the rings that have come; never blocks. False = no process has the engine's end any more.
inline bool answer_client_bell(int client_end) {
  char rings[512];
  return recv(client_end, rings, sizeof rings, MSG_DONTWAIT) != 0;
}

}  // namespace kvhive
