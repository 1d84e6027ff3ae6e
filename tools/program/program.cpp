#include "tools/program/program.hpp"

#include <signal.h>
#include <unistd.h>

#include <cstddef>
#include <cstdio>
#include <exception>
#include <string>

#include "base/log.hpp"
#include "tools/program/output.hpp"

namespace kvhive {
namespace {

Expected<int> run_without_exceptions(Expected<int> (*run)(int, char**), int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const std::exception& exception) {
    return failure(Errc::bad_format, exception.what());
  }
}

/// A buffer that takes what a program prints, so that nothing is written before flush_output(),
/// which then knows why it failed. Not on a terminal, where each line is shown at once.
void buffer_output() {
  static char buffer[std::size_t{1} << 18];
  if (isatty(STDOUT_FILENO) == 0) std::setvbuf(stdout, buffer, _IOFBF, sizeof buffer);
}

int report(const char* name, const Error& error) {
  print_error_line(std::string(name) + ": " + error.text);
  return 1;
}

}  // namespace

int run_program(const char* name, Expected<int> (*run)(int, char**), int argc, char** argv) {
  buffer_output();
  signal(SIGXFSZ,
         SIG_IGN);  // beyond a file-size limit (ulimit -f), a write is an error that says so
  const auto exit_code = run_without_exceptions(run, argc, argv);
  const auto written = flush_output();
  if (!exit_code) return report(name, exit_code.error());
  if (written || *exit_code != 0) return *exit_code;
  return written.error().code == Errc::peer_died ? kExitPipeClosed : report(name, written.error());
}

}  // namespace kvhive
