#pragma once
// kvhive serve, started as a user would.

#include <sys/types.h>

#include <string>
#include <vector>

#include "tests/serve/http_client.hpp"
#include "tests/tools/daemon.hpp"

namespace kvhive::testing {

inline const std::string kCompletions = "/v1/completions";

/// The body of a request for a completion that is always the same.
inline Json completion(const std::string& prompt, std::uint32_t max_tokens) {
  return {{"prompt", prompt}, {"max_tokens", max_tokens}, {"temperature", 0}};
}

/// A service on a port of its own.
class Service {
 public:
  /// \param descriptors  how many it may have open; 0 = as many as this process
  /// \param err  its standard error; -1 = this process's
  explicit Service(const std::string& socket, std::vector<std::string> flags = {},
                   int descriptors = 0, int err = -1);
  ~Service();
  Service(const Service&) = delete;
  Service& operator=(const Service&) = delete;

  /// SIGTERM; returns the exit code, or -1.
  int stop();
  pid_t pid() const { return pid_; }
  /// Whether it takes connections.
  bool listens() const;
  HttpClient connect() const { return HttpClient(port_); }
  /// Over a connection of its own.
  HttpReply ask(const std::string& request) const;

 private:
  pid_t pid_ = 0;
  std::uint16_t port_ = 0;
};

}  // namespace kvhive::testing
