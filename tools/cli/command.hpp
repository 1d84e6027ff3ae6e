#pragma once
// What the subcommands of `kvhive` share: the socket, the format, how they end.

#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>

#include "base/expected.hpp"
#include "config/options.hpp"
#include "ipc/default_socket.hpp"

namespace kvhive {

enum class Format : std::uint8_t { human, json };

struct CommonFlags {
  std::string socket;
  std::string format = "human";

  std::string socket_path() const { return socket.empty() ? default_socket() : socket; }
  Format output() const { return format == "json" ? Format::json : Format::human; }
  void add_to(CLI::App& app) {
    app.add_option("--socket", socket,
                   "the daemon's socket (default: KVHIVE_SOCKET, or where kvhived puts it)");
    add_format_to(app);
  }
  void add_format_to(CLI::App& app) {
    app.add_option("--format", format, "human or json")->check(CLI::IsMember({"human", "json"}));
  }
};

/// One line on standard error; the exit code.
int fail(const Error& error);

// Each adds its subcommand; what it does runs in a callback that sets `exit_code`.
void add_doctor(CLI::App& app, int& exit_code);
void add_generate(CLI::App& app, int& exit_code);
void add_pool(CLI::App& app, int& exit_code);
void add_replay(CLI::App& app, int& exit_code);
void add_layout(CLI::App& app, int& exit_code);
void add_stop(CLI::App& app, int& exit_code);

}  // namespace kvhive
