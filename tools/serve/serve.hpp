#pragma once
// The OpenAI-compatible service as a whole: one more client process of the daemon.

#include <functional>
#include <string>

#include "tools/serve/http/server.hpp"
#include "tools/serve/service.hpp"

namespace kvhive {

struct ServeOptions {
  std::string socket;  ///< the daemon's
  std::string host = "127.0.0.1";
  std::uint16_t port = 8000;
  OldNames metrics_old_names = OldNames::left_out;
  ServiceOptions service;
  HttpLimits http;
  Hive::Limits hive;
  ModelOptions model;  ///< of each that is served; names and files only if it is one
  std::vector<std::string> serve_models;     ///< of the daemon's models these; empty = all
  std::chrono::seconds daemon_timeout{0};    ///< how long a daemon is waited for at the start
  std::chrono::seconds shutdown_timeout{0};  ///< for requests under way when it is to end
};

/// Serves until SIGINT or SIGTERM. Requests that are under way then may end first, for
/// shutdown_timeout; those that are left are told (503). A second signal ends at once. SIGHUP:
/// Service::reload(), and the log file is opened again.
/// \param on_ready  called with the models' names and the port once requests are taken
[[nodiscard]] Expected<void> serve(
    const ServeOptions& options,
    const std::function<void(const std::string&, std::uint16_t)>& on_ready);

}  // namespace kvhive
