#include "ipc/listener.hpp"

#include <fcntl.h>
#include <grp.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <chrono>
#include <filesystem>
#include <thread>

#include "ipc/protocol.hpp"

namespace kvhive {
namespace {

/// Connections that wait to be accepted. The daemon accepts at once; it takes many at a time to
/// fill this.
constexpr int kBacklog = 1024;

std::filesystem::path directory_of(const std::string& path) {
  return std::filesystem::absolute(path).parent_path();
}

/// Device and inode number of a file ("48:1234"); a symbolic link is not followed. Empty if there
/// is no such file.
std::string identity_of(const std::string& path) {
  struct stat status {};
  if (lstat(path.c_str(), &status) != 0) return {};
  return std::to_string(status.st_dev) + ":" + std::to_string(status.st_ino);
}
std::string identity_of(const UniqueFd& fd) {
  struct stat status {};
  if (fstat(fd.get(), &status) != 0) return {};
  return std::to_string(status.st_dev) + ":" + std::to_string(status.st_ino);
}

/// Holds an exclusive lock on the socket's directory as long as the object lives. With the lock,
/// only one process at a time checks for a running daemon and then binds the socket, or compares a
/// socket and then removes it.
///
/// Daemons hold it for microseconds. But in a directory like /tmp, any user can take it and keep
/// it, so nobody waits longer than kPatience.
class DirectoryLock {
 public:
  explicit DirectoryLock(const UniqueFd& directory) : fd_(directory.get()) {
    const auto end = std::chrono::steady_clock::now() + kPatience;
    while (!(is_held_ = flock(fd_, LOCK_EX | LOCK_NB) == 0)) {
      if (errno != EWOULDBLOCK || std::chrono::steady_clock::now() >= end) return;
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
  }
  DirectoryLock(const DirectoryLock&) = delete;
  DirectoryLock& operator=(const DirectoryLock&) = delete;
  ~DirectoryLock() {
    if (is_held_) flock(fd_, LOCK_UN);
  }
  bool is_held() const { return is_held_; }

 private:
  static constexpr std::chrono::milliseconds kPatience{500};
  int fd_;
  bool is_held_ = false;
};

UniqueFd open_directory(const std::filesystem::path& directory) {
  return UniqueFd{open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)};
}

/// Gives access to the users that the operator named, and to no others.
Expected<void> grant(const std::filesystem::path& path, mode_t mode,
                     const SocketPermissions& access) {
  if (access.group && chown(path.c_str(), static_cast<uid_t>(-1), *access.group) != 0)
    return os_failure("socket-access: give " + path.string() + " to group " +
                      std::to_string(*access.group) +
                      " (the daemon's user must be a member of it)");
  if (chmod(path.c_str(), mode) != 0) return os_failure("change the mode of " + path.string());
  return {};
}

/// The process that called listen() on the socket; nothing = the socket is not open in any process,
/// 0 = the process is unknown: its queue of connections is full, or it is not visible in this PID
/// namespace. A stopped process (SIGSTOP) counts.
std::optional<pid_t> listening_process(const std::string& path) {
  auto address = address_of(path);
  const UniqueFd probe{socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)};
  if (!address || !probe) return std::nullopt;
  if (connect(probe.get(), reinterpret_cast<const sockaddr*>(&*address), sizeof *address) != 0)
    return errno == EAGAIN ? std::optional(pid_t{0}) : std::nullopt;
  const auto credentials = peer_credentials(probe.get());
  return credentials ? credentials->pid : 0;
}

/// The socket's directory, made if it is missing.
struct Place {
  UniqueFd directory;
  bool is_made = false;
};

Expected<Place> take_place(const std::filesystem::path& directory,
                           const SocketPermissions& access) {
  Place place;
  place.is_made = mkdir(directory.c_str(), 0700) == 0;
  if (!place.is_made && errno != EEXIST) return os_failure("make directory " + directory.string());
  if (place.is_made)
    if (auto granted = grant(directory, access.directory_mode, access); !granted) {
      rmdir(directory.c_str());
      return forward_error(granted);
    }
  struct stat status {};
  if (stat(directory.c_str(), &status) == 0 && (status.st_mode & (S_IWOTH | S_ISVTX)) == S_IWOTH)
    return failure(Errc::bad_argument, "socket: everybody may write to its directory " +
                                           directory.string() +
                                           " and put another socket in its place; chmod o-w it, or "
                                           "choose another");
  place.directory = open_directory(directory);
  if (!place.directory) return os_failure("open directory " + directory.string());
  return place;
}

/// Returns a socket bound to the path. A socket file that is there already is replaced: the caller
/// has checked that no process listens on it.
Expected<UniqueFd> bind_to(const std::string& path) {
  auto address = address_of(path);
  if (!address) return forward_error(address);
  UniqueFd fd{socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0)};
  if (!fd) return os_failure("socket");
  struct stat status {};
  if (lstat(path.c_str(), &status) == 0 && !S_ISSOCK(status.st_mode))
    return failure(Errc::bad_argument,
                   "socket: '" + path + "' exists and is not a socket; choose another path");
  if (unlink(path.c_str()) != 0 && errno != ENOENT)
    return failure(Errc::bad_argument, "socket: '" + path + "' is user " +
                                           std::to_string(status.st_uid) + "'s, and user " +
                                           std::to_string(geteuid()) +
                                           " cannot replace it; choose another path, or run as "
                                           "that user");
  const mode_t mask = umask(0177);
  const int bound = bind(fd.get(), reinterpret_cast<const sockaddr*>(&*address), sizeof *address);
  umask(mask);
  if (bound != 0) return os_failure("bind " + path);
  return fd;
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

Expected<Listener> Listener::open(const std::string& path, const SocketPermissions& access,
                                  PeerDescriptors descriptors) {
  const std::filesystem::path directory = directory_of(path);
  auto place = take_place(directory, access);
  if (!place) return forward_error(place);
  const DirectoryLock lock(place->directory);
  if (!lock.is_held())
    return failure(Errc::already_running,
                   "socket: another process keeps directory " + directory.string() +
                       " locked (flock); end it, or choose a directory that only this user may "
                       "enter");
  if (listening_process(path))
    return failure(Errc::already_running,
                   "another daemon listens on " + path +
                       "; stop it (kvhive stop), or give this one another --socket");
  auto fd = bind_to(path);
  if (!fd) return forward_error(fd);
  // No process can have connected before this: the socket does not listen yet.
  if (auto granted = grant(path, access.socket_mode, access); !granted) {
    unlink(path.c_str());
    if (place->is_made) rmdir(directory.c_str());
    return forward_error(granted);
  }
  if (descriptors == PeerDescriptors::refused) refuse_descriptors(fd->get());
  if (listen(fd->get(), kBacklog) != 0) return os_failure("listen on " + path);
  return Listener(std::move(*fd), std::move(place->directory), path, identity_of(path),
                  place->is_made);
}

Expected<Listener> Listener::take_over(const Handed& handed) {
  if (listen(handed.fd, kBacklog) != 0) return os_failure("listen on " + handed.path);
  return Listener(UniqueFd(handed.fd), UniqueFd(handed.directory), handed.path, handed.identity,
                  handed.made_directory);
}

Listener::Listener(UniqueFd fd, UniqueFd directory, std::string path, std::string identity,
                   bool made_directory)
    : fd_(std::move(fd)),
      directory_(std::move(directory)),
      path_(std::move(path)),
      identity_(std::move(identity)),
      made_directory_(made_directory) {}

Listener::~Listener() { remove_files(); }

void Listener::remove_files() const {
  if (!fd_) return;
  // Not checked: the identity shows that the socket is this object's, so it is removed without the
  // lock, too.
  const DirectoryLock lock(directory_);
  if (identity_of(path_) == identity_) unlink(path_.c_str());
  const std::string directory = directory_of(path_);
  // rmdir() fails, as it should, if another file is in the directory.
  if (made_directory_ && identity_of(directory) == identity_of(directory_))
    rmdir(directory.c_str());
}

bool remove_stale_socket(const std::string& path, const std::string& identity, pid_t dead_keeper) {
  const UniqueFd directory = open_directory(directory_of(path));
  if (!directory) return false;
  const DirectoryLock lock(directory);
  if (!lock.is_held() || identity_of(path) != identity) return false;
  // After the keeper's end, the file system may have given the same inode number to another
  // daemon's socket. So a socket on which another process listens is never removed, even if its
  // number is the same. A child that the keeper had just forked has the keeper's socket open until
  // it calls exec().
  const auto listening = listening_process(path);
  if (listening && *listening != dead_keeper) return false;
  return unlink(path.c_str()) == 0;
}

}  // namespace kvhive
