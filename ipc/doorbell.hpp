#pragma once
// A doorbell is how the two ends of a channel wake each other: a connected pair of sockets. One
// byte sent is one ring.
//
// An eventfd would not do: whether reading it blocks is a property of the open file, which the
// other process shares and can change. On a socket, each call says by a flag that it must not
// block, so a client cannot make its engine block.

#include <sys/socket.h>

#include <array>

#include "base/expected.hpp"
#include "base/unique_fd.hpp"

namespace kvhive {

/// Two ends. After a ring at one end, poll() finds the other readable.
[[nodiscard]] inline Expected<std::array<UniqueFd, 2>> make_doorbell() {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) != 0)
    return os_failure("socketpair");
  return std::array<UniqueFd, 2>{UniqueFd(ends[0]), UniqueFd(ends[1])};
}

/// Never blocks. If the buffer is full, the other end has unread rings already and will wake.
inline void ring_doorbell(int end) {
  const char ring = 1;
  [[maybe_unused]] const ssize_t sent = send(end, &ring, 1, MSG_DONTWAIT | MSG_NOSIGNAL);
}

/// Reads the rings that have come; never blocks. False = the other end is closed.
inline bool answer_doorbell(int end) {
  char rings[512];
  return recv(end, rings, sizeof rings, MSG_DONTWAIT) != 0;
}

}  // namespace kvhive
