#include "tools/keeper/succession/strays.hpp"

#include <dirent.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <charconv>
#include <cstdio>
#include <cstring>
#include <string>

#include "base/memory/memory_object.hpp"
#include "ipc/channel/channel_memory.hpp"

namespace kvhive {
namespace {

/// The path that a socket is bound to, as its owner has written it; empty if it is no such socket.
std::string path_of(int socket) {
  sockaddr_un address{};
  socklen_t size = sizeof address;
  if (getsockname(socket, reinterpret_cast<sockaddr*>(&address), &size) != 0 ||
      address.sun_family != AF_UNIX)
    return {};
  return {address.sun_path, strnlen(address.sun_path, sizeof address.sun_path)};
}

std::string name_of(int fd) {
  char link[32], name[256];
  std::snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  const ssize_t size = readlink(link, name, sizeof name);
  return size > 0 ? std::string(name, static_cast<std::size_t>(size)) : std::string();
}

}  // namespace

std::set<int> open_descriptors() {
  std::set<int> fds;
  DIR* const directory = opendir("/proc/self/fd");
  if (directory == nullptr) return fds;
  while (const dirent* entry = readdir(directory)) {
    int fd = -1;
    const char* const end = entry->d_name + std::strlen(entry->d_name);
    if (std::from_chars(entry->d_name, end, fd).ptr == end && fd != dirfd(directory))
      fds.insert(fd);
  }
  closedir(directory);
  return fds;
}

Strays find_strays(const std::set<int>& known, int listener) {
  Strays strays;
  const std::string path = path_of(listener);
  for (const int fd : open_descriptors()) {
    if (known.contains(fd)) continue;
    const bool is_connection = !path.empty() && path_of(fd) == path;
    (is_connection ? strays.connections : strays.others).emplace_back(fd);
  }
  return strays;
}

void close_stray(UniqueFd stray) {
  struct stat status {};
  if (name_of(stray.get()).find("memfd:" + kAnswersName + " ") != std::string::npos &&
      fstat(stray.get(), &status) == 0)
    free_memory(stray, 0, static_cast<std::size_t>(status.st_size));
}

}  // namespace kvhive
