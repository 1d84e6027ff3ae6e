#pragma once
// How the two ends of a channel wake each other: a connected pair of sockets, one byte a ring.
//
// Not an eventfd: whether that one blocks is a property of the open file, which the other side
// shares and may change. Here not to block is said with every call, so a client cannot put its
// engine to sleep.

#include <sys/socket.h>

#include <array>

#include "base/expected.hpp"
#include "base/unique_fd.hpp"

namespace kvhive {

/// Two ends; a ring at one can be polled for at the other.
inline Expected<std::array<UniqueFd, 2>> make_doorbell() {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) != 0)
    return os_failure("socketpair");
  return std::array<UniqueFd, 2>{UniqueFd(ends[0]), UniqueFd(ends[1])};
}

/// Never blocks. A full buffer means that the other end has rings enough to answer.
inline void ring_doorbell(int end) {
  const char ring = 1;
  [[maybe_unused]] const ssize_t sent = send(end, &ring, 1, MSG_DONTWAIT | MSG_NOSIGNAL);
}

/// Takes the rings that are there, never blocks. False = nobody will ever ring again.
inline bool answer_doorbell(int end) {
  char rings[512];
  return recv(end, rings, sizeof rings, MSG_DONTWAIT) != 0;
}

}  // namespace kvhive
