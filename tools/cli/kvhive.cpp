// kvhive: the command line. One file per subcommand under tools/cli/.

#include <cstdio>

#include "tools/cli/command.hpp"

namespace kvhive {

int fail(const Error& error) {
  std::fprintf(stderr, "kvhive: %s\n", error.text.c_str());
  return 1;
}

}  // namespace kvhive

int main(int argc, char** argv) {
  CLI::App app{
      "kvhive: generate with a running kvhived, look into its pool, replay traffic through a pool "
      "of your own"};
  app.require_subcommand(1);
  int exit_code = 0;
  kvhive::add_generate(app, exit_code);
  kvhive::add_pool(app, exit_code);
  kvhive::add_replay(app, exit_code);
  kvhive::add_layout(app, exit_code);
  kvhive::add_stop(app, exit_code);
  kvhive::add_doctor(app, exit_code);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);
    return kvhive::fail({kvhive::Errc::bad_argument, std::string(error.what()) + "; see --help"});
  } catch (const std::exception& exception) {
    return kvhive::fail({kvhive::Errc::bad_format, exception.what()});
  }
  return exit_code;
}
