#include "tools/keeper/succession/service_manager.hpp"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <string_view>

namespace kvhive {

ServiceManager ServiceManager::of_this_process() {
  ServiceManager manager;
  const char* const named = std::getenv("NOTIFY_SOCKET");
  const std::string_view path = named != nullptr ? named : "";
  sockaddr_un address{};
  const bool is_known = path.starts_with('/') || path.starts_with('@');
  if (!is_known || path.size() >= sizeof address.sun_path) return manager;
  address.sun_family = AF_UNIX;
  std::copy(path.begin(), path.end(), address.sun_path);
  if (address.sun_path[0] == '@') address.sun_path[0] = '\0';  // an abstract name
  UniqueFd socket(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + path.size());
  if (socket && connect(socket.get(), reinterpret_cast<sockaddr*>(&address), size) == 0)
    manager.socket_ = std::move(socket);
  return manager;
}

void ServiceManager::tell(const std::string& lines) const {
  if (!socket_) return;
  [[maybe_unused]] const ssize_t written = write(socket_.get(), lines.data(), lines.size());
}

}  // namespace kvhive
