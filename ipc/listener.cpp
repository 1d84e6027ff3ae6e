#include "ipc/listener.hpp"

#include <fcntl.h>
#include <grp.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <filesystem>

#include "ipc/protocol.hpp"

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

/// Lets in whom the operator named, and nobody else.
Expected<void> grant(const std::filesystem::path& path, mode_t mode,
                     const SocketPermissions& access) {
  if (access.group && chown(path.c_str(), static_cast<uid_t>(-1), *access.group) != 0)
    return os_failure("socket-access: give " + path.string() + " to group " +
                      std::to_string(*access.group) +
                      " (the daemon's user must be a member of it)");
  if (chmod(path.c_str(), mode) != 0) return os_failure("change the mode of " + path.string());
  return {};
}

/// Also if it is stopped and its queue is full (Errc::os_error).
bool somebody_listens(const std::string& path) {
  const auto socket = connect_to_daemon(path);
  return socket || socket.error().code == Errc::os_error;
}

}  // namespace

Expected<SocketPermissions> resolve_permissions(const AllowedUsers& users) {
  if (users.kind == AllowedUsers::Kind::owner) return SocketPermissions{};
  if (users.kind == AllowedUsers::Kind::everybody)
    return SocketPermissions{0666, 0711, std::nullopt};
  const std::string& name = users.group;
  gid_t id = 0;
  const auto [end, status] = std::from_chars(name.data(), name.data() + name.size(), id);
  const bool is_number = status == std::errc{} && end == name.data() + name.size();
  if (!is_number) {
    const group* found = getgrnam(name.c_str());
    if (found == nullptr)
      return failure(Errc::bad_argument, "socket-access: '" + to_string(users) +
                                             "' names a group unknown to this system; correct it, "
                                             "or give its number");
    id = found->gr_gid;
  }
  return SocketPermissions{0660, 0710, id};
}

Expected<Listener> Listener::open(const std::string& path, const SocketPermissions& access) {
  const std::filesystem::path directory = directory_of(path);
  const bool made_directory = mkdir(directory.c_str(), 0700) == 0;
  if (!made_directory && errno != EEXIST) return os_failure("make directory " + directory.string());
  if (made_directory)
    if (auto granted = grant(directory, access.directory_mode, access); !granted) {
      rmdir(directory.c_str());
      return forward_error(granted);
    }
  struct stat place {};
  if (stat(directory.c_str(), &place) == 0 && (place.st_mode & (S_IWOTH | S_ISVTX)) == S_IWOTH)
    return failure(Errc::bad_argument,
                   "socket: everybody may write to its directory " + directory.string() +
                       " and put another socket in its place; chmod o-w it, or choose another");
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
  // Nobody can have connected before this: there is no listener yet.
  if (auto granted = grant(path, access.socket_mode, access); !granted) {
    unlink(path.c_str());
    if (made_directory) rmdir(directory.c_str());
    return forward_error(granted);
  }
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
