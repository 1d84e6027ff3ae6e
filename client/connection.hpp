#pragma once
// A client's three connections to a daemon: the socket, which each side watches to learn that the
// other has ended, the doorbell and the channel. Internal: kvhive::Client is built on it, and tests
// use it where they need the raw channel.

#include <cstdint>
#include <string>

#include "ipc/channel/client_channel.hpp"

namespace kvhive {

struct Connection {
  /// Says hello to the daemon and maps the channel that it grants.
  /// \param socket_path  empty = default_socket()
  /// \param engine  the number of the engine that shall serve the channel; kAnyEngine = any
  /// \param domain  the domain that is asked for; empty = this user's
  /// \param model   whose engines are to serve; empty = the daemon's first
  /// \param timeout_ms  how long a stopped or overloaded daemon is waited for
  [[nodiscard]] static Expected<Connection> open(const std::string& socket_path,
                                                 std::uint32_t engine, std::size_t channel_bytes,
                                                 const std::string& domain,
                                                 const std::string& model, int timeout_ms);

  /// Sleeps until the doorbell rings, the timeout has run out or a signal has come. An error = the
  /// daemon has ended the connection.
  [[nodiscard]] Expected<void> wait(int timeout_ms);

  UniqueFd socket;
  UniqueFd bell;  ///< readable when the engine has rung
  UniqueFd news;  ///< an epoll descriptor of both: readable while wait() would return at once
  ClientChannel channel;
  std::size_t channel_bytes = 0;  ///< granted
};

}  // namespace kvhive
