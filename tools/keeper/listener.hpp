#pragma once
// The daemon's socket in the file system: made by one daemon at a time, gone when it ends.

#include <string>

#include "config/expected.hpp"
#include "config/unique_fd.hpp"

namespace kvhive {

class Listener {
 public:
  /// Binds and listens; the directory is made (mode 0700) if it is missing. A socket nobody listens
  /// on any more is replaced; a living daemon's is Errc::already_running.
  static Expected<Listener> open(const std::string& path);

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
