#pragma once
// A server of our own on a private Unix socket, and a client that does no more than it must: whole
// replies by readv, block bytes straight to where they belong.

#include <sys/types.h>

#include <cstddef>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "base/unique_fd.hpp"

namespace kvhive::bench {

/// Started by the constructor, ended by the destructor, killed by the kernel should we be.
class LocalServer {
 public:
  /// Returns when the server listens at `socket`.
  LocalServer(std::vector<std::string> command, const std::filesystem::path& socket);
  LocalServer(const LocalServer&) = delete;
  LocalServer& operator=(const LocalServer&) = delete;
  ~LocalServer();

 private:
  pid_t pid_;
  pid_t started_by_;  ///< a forked copy of us does not end it
};

class LineSocket {
 public:
  explicit LineSocket(const std::filesystem::path& socket);

  void send(std::string_view bytes);
  /// The next line of the reply, without its end.
  std::string_view line();
  /// `bytes` of the reply that follow it, and the end of line after them.
  void body(std::byte* to, std::size_t bytes);

 private:
  void refill();

  UniqueFd fd_;
  std::vector<char> buffer_;
  std::size_t begin_ = 0, end_ = 0;
};

}  // namespace kvhive::bench
