#pragma once
// What the commands of `kvhive` share: the socket, the output format, how they end.

#include <CLI/CLI.hpp>
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/expected.hpp"
#include "ipc/default_socket.hpp"
#include "kvhive/client.hpp"

namespace kvhive {

enum class Format : std::uint8_t { human, json };
constexpr std::array<std::string_view, 2> names_of(Format) { return {"human", "json"}; }

/// --socket and --format. They may stand before the command or after it; the latter wins.
struct CommonFlags {
  std::string socket;
  std::optional<Format> format;

  /// Those given before the command.
  static CommonFlags& before_command();

  std::string socket_path() const;
  Format output() const;
  void add_to(CLI::App& app);
  void add_socket_to(CLI::App& app);
  void add_format_to(CLI::App& app);
};

/// What the client library says, as an error of this program.
inline tl::unexpected<Error> as_failure(const ClientError& error) {
  return failure(Errc(int(error.code)), error.text);
}

/// Prints the error as one line on standard error; returns the exit code.
int fail(const Error& error);

// Each adds its command; what the command does runs in a callback that sets `exit_code`.
void add_doctor(CLI::App& app, int& exit_code);
void add_engine(CLI::App& app, int& exit_code);
void add_events(CLI::App& app, int& exit_code);
void add_generate(CLI::App& app, int& exit_code);
void add_pool(CLI::App& app, int& exit_code);
void add_reload(CLI::App& app, int& exit_code);
void add_replay(CLI::App& app, int& exit_code);
void add_layout(CLI::App& app, int& exit_code);
void add_serve(CLI::App& app, int& exit_code);
void add_stop(CLI::App& app, int& exit_code);
void add_top(CLI::App& app, int& exit_code);
void add_watch(CLI::App& app, int& exit_code);

}  // namespace kvhive
