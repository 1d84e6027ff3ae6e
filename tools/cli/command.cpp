#include "tools/cli/command.hpp"

#include "config/options.hpp"
#include "tools/program/choice_flag.hpp"

namespace kvhive {

CommonFlags& CommonFlags::before_command() {
  static CommonFlags flags;
  return flags;
}

std::string CommonFlags::socket_path() const {
  if (!socket.empty()) return socket;
  const std::string& before = before_command().socket;
  return before.empty() ? default_socket() : before;
}

Format CommonFlags::output() const {
  return format.value_or(before_command().format.value_or(Format::human));
}

void CommonFlags::add_to(CLI::App& app) {
  add_socket_to(app);
  add_format_to(app);
}

void CommonFlags::add_socket_to(CLI::App& app) {
  app.add_option("--socket", socket,
                 "the daemon's socket (default: KVHIVE_SOCKET, or where kvhived puts it)")
      ->type_name("FILE");
}

void CommonFlags::add_format_to(CLI::App& app) {
  add_choice<Format>(app, "--format", format, "output for people or for programs")
      ->default_str("human");
}

}  // namespace kvhive
