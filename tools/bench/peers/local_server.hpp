#pragma once
// A private server process on a Unix socket, and a client that does as little work as possible: it
// reads whole replies by readv, and the bytes of blocks directly to their destination.

#include <sys/types.h>

#include <cstddef>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "base/unique_fd.hpp"

namespace kvhive::bench {

/// A server process. The constructor starts it and the destructor kills it; the kernel kills it if
/// the benchmark dies.
class LocalServer {
 public:
  /// Returns when the server listens at `socket`.
  LocalServer(std::vector<std::string> command, const std::filesystem::path& socket);
  LocalServer(const LocalServer&) = delete;
  LocalServer& operator=(const LocalServer&) = delete;
  ~LocalServer();

 private:
  pid_t pid_;
  pid_t
      started_by_;  ///< pid of the process that started it: only that process's destructor ends it
};

class LineSocket {
 public:
  explicit LineSocket(const std::filesystem::path& socket);

  void send(std::string_view bytes);
  /// The next line of the reply, without the end-of-line characters.
  std::string_view line();
  /// Reads the next `bytes` bytes of the reply to `to`, and skips the end of line after them.
  void body(std::byte* to, std::size_t bytes);

 private:
  void refill();

  UniqueFd fd_;
  std::vector<char> buffer_;
  std::size_t begin_ = 0, end_ = 0;
};

}  // namespace kvhive::bench
