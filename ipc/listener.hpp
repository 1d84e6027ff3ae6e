#pragma once
// The daemon's socket in the file system. One daemon at a time makes it, and
// removes it when it ends.

#include <sys/types.h>

#include <optional>
#include <string>

#include "base/expected.hpp"
#include "base/unique_fd.hpp"
#include "config/allowed_users.hpp"

namespace kvhive {

/// Owner and modes of the socket and its directory, which decide who may
/// connect: connecting takes the right to write the socket and to search its
/// directory.
struct SocketPermissions {
  mode_t socket_mode = 0600;
  mode_t directory_mode = 0700;  ///< of a directory that we make
  std::optional<gid_t> group;    ///< of both
};

/// Looks the group up. Errors: the system does not know it.
[[nodiscard]] Expected<SocketPermissions> resolve_permissions(const AllowedUsers& users);

class Listener {
 public:
  /// Binds and listens; the directory is made if it is missing, and left as it
  /// is if it is not. A socket on which no process listens any more is
  /// replaced; a running daemon's socket is Errc::already_running.
  [[nodiscard]] static Expected<Listener> open(const std::string& path,
                                               const SocketPermissions& access);

  Listener(Listener&&) = default;
  Listener& operator=(Listener&&) = delete;
  /// Removes the socket, and the directory if it was made here and is empty.
  /// What another daemon has put in their place meanwhile stays.
  ~Listener();

  int fd() const { return fd_.get(); }
  const std::string& path() const { return path_; }
  bool made_directory() const { return made_directory_; }
  /// The socket's device and inode number in the file system ("48:1234"): they
  /// tell it from a socket that another daemon has made on the same path.
  const std::string& identity() const { return identity_; }

 private:
  Listener(UniqueFd fd, UniqueFd directory, std::string path, bool made_directory);

  UniqueFd fd_;         ///< while it is open, no other socket can have the same inode number
  UniqueFd directory_;  ///< open for the same reason
  std::string path_;
  std::string identity_;
  bool made_directory_;
};

/// Removes the socket of a keeper that was killed: only if the file on `path`
/// is still that socket
/// (`identity`) and no process listens on it. For the steward.
/// \return  whether it was removed
bool remove_stale_socket(const std::string& path, const std::string& identity);

}  // namespace kvhive
