#pragma once
// The daemon's socket in the file system: made by one daemon at a time, gone when it ends.

#include <sys/types.h>

#include <optional>
#include <string>

#include "base/expected.hpp"
#include "base/unique_fd.hpp"
#include "config/allowed_users.hpp"

namespace kvhive {

/// Owner and modes of the socket and its directory, which decide who may connect: connecting takes
/// the right to write the socket and to search its directory.
struct SocketPermissions {
  mode_t socket_mode = 0600;
  mode_t directory_mode = 0700;  ///< of a directory that we make
  std::optional<gid_t> group;    ///< of both
};

/// Looks the group up. Errors: the system does not know it.
Expected<SocketPermissions> resolve_permissions(const AllowedUsers& users);

class Listener {
 public:
  /// Binds and listens; the directory is made if it is missing, and left as it is if it is not. A
  /// socket nobody listens on any more is replaced; a living daemon's is Errc::already_running.
  static Expected<Listener> open(const std::string& path, const SocketPermissions& access);

  Listener(Listener&&) = default;
  Listener& operator=(Listener&&) = delete;
  ~Listener();  ///< removes the socket, and the directory if it was made here and is empty

  int fd() const { return fd_.get(); }
  const std::string& path() const { return path_; }
  bool made_directory() const { return made_directory_; }

 private:
  Listener(UniqueFd fd, std::string path, bool made_directory)
      : fd_(std::move(fd)), path_(std::move(path)), made_directory_(made_directory) {}

  UniqueFd fd_;
  std::string path_;
  bool made_directory_;
};

/// Removes a socket whose daemon died without doing so. For the steward, when the keeper has hung
/// up.
void remove_stale_socket(const std::string& path);

}  // namespace kvhive
