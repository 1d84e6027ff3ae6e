// kvhive: the command line. One file for each command under tools/cli/.

#include <cstdio>

#include "tools/cli/command.hpp"
#include "tools/program/command_line.hpp"
#include "tools/program/program.hpp"

namespace kvhive {
namespace {

Expected<int> run(int argc, char** argv) {
  CommandLine app(
      "kvhive",
      "kvhive: generate text with a running daemon, look into its pool, replay recorded "
      "traffic through a pool of its own");
  app.require_subcommand(1);
  CommonFlags::before_command().add_to(app);
  int exit_code = 0;
  add_generate(app, exit_code);
  add_pool(app, exit_code);
  add_top(app, exit_code);
  add_watch(app, exit_code);
  add_events(app, exit_code);
  add_replay(app, exit_code);
  add_serve(app, exit_code);
  add_layout(app, exit_code);
  add_stop(app, exit_code);
  add_engine(app, exit_code);
  add_reload(app, exit_code);
  add_doctor(app, exit_code);
  CommonFlags::before_command().add_to(*app.get_subcommand("pool"));
  if (const auto code = app.read(argc, argv)) return *code;
  return exit_code;
}

}  // namespace

int fail(const Error& error) {
  std::fprintf(stderr, "kvhive: %s\n", error.text.c_str());
  return 1;
}

}  // namespace kvhive

int main(int argc, char** argv) { return kvhive::run_program("kvhive", kvhive::run, argc, argv); }
