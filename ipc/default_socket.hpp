#pragma once

#include <string>

namespace kvhive {

/// The path of the daemon's socket when no option names one: $KVHIVE_SOCKET, else
/// $XDG_RUNTIME_DIR/kvhive/kvhived.sock, else /run/kvhive/kvhived.sock.
std::string default_socket();

/// The same without XDG_RUNTIME_DIR, which belongs to one user.
std::string system_socket();

}  // namespace kvhive
