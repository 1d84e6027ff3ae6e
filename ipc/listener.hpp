#pragma once
// The daemon's socket in the file system. Only one daemon at a time has it; the daemon makes the
// socket when it starts and removes it when it ends.

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>

#include "base/expected.hpp"
#include "base/unique_fd.hpp"
#include "config/domains/allowed_users.hpp"

namespace kvhive {

/// Group and modes of the socket and its directory. They decide which users may connect: connecting
/// requires the right to write to the socket and to search its directory.
struct SocketPermissions {
  mode_t socket_mode = 0600;
  mode_t directory_mode = 0700;  ///< only for a directory that the daemon makes
  std::optional<gid_t> group;    ///< of the socket and of a directory that the daemon makes
};

/// Looks up the number of the group. Errors: the system does not know the group.
[[nodiscard]] Expected<SocketPermissions> resolve_permissions(const AllowedUsers& users);

/// Whether the kernel may pass on descriptors that are sent over the socket. Nobody needs to send
/// any where the kernel tells a peer's pidfd; `passed_on` is what happens before Linux 6.16.
enum class PeerDescriptors : std::uint8_t { refused, passed_on };

class Listener {
 public:
  /// Binds and listens. A missing directory is made; an existing one is left as it is. A socket on
  /// which no process listens any more is replaced. If a running daemon listens on it:
  /// Errc::already_running.
  [[nodiscard]] static Expected<Listener> open(
      const std::string& path, const SocketPermissions& access,
      PeerDescriptors descriptors = PeerDescriptors::refused);

  /// The same socket in a program that was executed since: it got the descriptors.
  struct Handed {
    int fd = -1, directory = -1;
    std::string path, identity;
    bool made_directory = false;
  };
  Handed hand_over() const {
    return {fd_.get(), directory_.get(), path_, identity_, made_directory_};
  }
  /// Listens anew: for those who connect from then on, this process is the daemon.
  [[nodiscard]] static Expected<Listener> take_over(const Handed& handed);

  Listener(Listener&&) = default;
  Listener& operator=(Listener&&) = delete;
  /// Calls remove_files().
  ~Listener();
  /// Removes the socket, and the directory if this object made it and it is empty. A socket or
  /// directory that another daemon has put in their place meanwhile stays. Connections stay open.
  void remove_files() const;
  /// Keeps the socket open until the process ends, for the packets of connections that were never
  /// accepted: closing their descriptors may take long (before Linux 6.16).
  void leave_open() { (void)fd_.release(); }

  int fd() const { return fd_.get(); }
  const std::string& path() const { return path_; }
  bool made_directory() const { return made_directory_; }
  /// The socket's device and inode number in the file system ("48:1234"). They distinguish it from
  /// a socket that another daemon has made on the same path.
  const std::string& identity() const { return identity_; }

 private:
  Listener(UniqueFd fd, UniqueFd directory, std::string path, std::string identity,
           bool made_directory);

  UniqueFd fd_;  ///< while it is open, the socket's inode number cannot be given to another file
  UniqueFd directory_;  ///< kept open for the same reason
  std::string path_;
  std::string identity_;
  bool made_directory_;
};

/// Removes the socket of a keeper that was killed, but only if the file at `path` still has this
/// `identity` and no other process listens on it. The steward calls it.
/// \param dead_keeper  the keeper's pid
/// \return  whether it was removed
bool remove_stale_socket(const std::string& path, const std::string& identity, pid_t dead_keeper);

}  // namespace kvhive
