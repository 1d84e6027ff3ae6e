#include "tools/keeper/listener.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>

#include "tools/keeper/protocol.hpp"

namespace kvhive {
namespace {

std::filesystem::path directory_of(const std::string& path) {
  return std::filesystem::absolute(path).parent_path();
}

/// An exclusive lock on the socket's directory, for as long as the descriptor is open: between
/// looking for a daemon and becoming one, nobody else may do the same.
Expected<UniqueFd> lock_directory(const std::filesystem::path& directory) {
  UniqueFd fd{open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)};
  if (!fd) return os_failure("open directory " + directory.string());
  if (flock(fd.get(), LOCK_EX) != 0) return os_failure("lock directory " + directory.string());
  return fd;
}

bool somebody_listens(const std::string& path) { return connect_to_daemon(path).has_value(); }

}  // namespace

Expected<Listener> Listener::open(const std::string& path) {
  const std::filesystem::path directory = directory_of(path);
  const bool made_directory = mkdir(directory.c_str(), 0700) == 0;
  if (!made_directory && errno != EEXIST) return os_failure("make directory " + directory.string());
  auto lock = lock_directory(directory);
  if (!lock) return forward_error(lock);
  if (somebody_listens(path))
    return failure(Errc::already_running,
                   "another daemon listens on " + path +
                       "; stop it (kvhive stop), or give this one another --socket");

  auto address = address_of(path);
  if (!address) return forward_error(address);
  UniqueFd fd{socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0)};
  if (!fd) return os_failure("socket");
  struct stat status {};
  if (lstat(path.c_str(), &status) == 0 && !S_ISSOCK(status.st_mode))
    return failure(Errc::bad_argument,
                   "socket: '" + path + "' exists and is not a socket; choose another path");
  unlink(path.c_str());
  const mode_t mask = umask(0177);
  const int bound = bind(fd.get(), reinterpret_cast<const sockaddr*>(&*address), sizeof *address);
  umask(mask);
  if (bound != 0) return os_failure("bind " + path);
  if (listen(fd.get(), 64) != 0) return os_failure("listen on " + path);
  return Listener(std::move(fd), path, made_directory);
}

Listener::~Listener() {
  if (!fd_) return;
  unlink(path_.c_str());
  if (made_directory_) rmdir(directory_of(path_).c_str());  // if nothing else is in it
}

void remove_stale_socket(const std::string& path) {
  auto lock = lock_directory(directory_of(path));
  if (lock && !somebody_listens(path)) unlink(path.c_str());
}

}  // namespace kvhive
