#pragma once

#include <string>

namespace kvhive {

/// Where daemon and clients meet unless told otherwise: $KVHIVE_SOCKET, else
/// $XDG_RUNTIME_DIR/kvhive/kvhived.sock, else /run/kvhive/kvhived.sock.
std::string default_socket();

}  // namespace kvhive
