#include "ipc/default_socket.hpp"

#include <cstdlib>

namespace kvhive {

std::string system_socket() {
  if (const char* chosen = std::getenv("KVHIVE_SOCKET"); chosen != nullptr && *chosen != '\0')
    return chosen;
  return "/run/kvhive/kvhived.sock";
}

std::string default_socket() {
  if (const char* chosen = std::getenv("KVHIVE_SOCKET"); chosen != nullptr && *chosen != '\0')
    return chosen;
  if (const char* runtime = std::getenv("XDG_RUNTIME_DIR"); runtime != nullptr && *runtime != '\0')
    return std::string(runtime) + "/kvhive/kvhived.sock";
  return system_socket();
}

}  // namespace kvhive
