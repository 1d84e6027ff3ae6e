#pragma once
// A program's command line: help, --version, errors in one line that name the nearest option or
// command, and the hidden `--generate man|completion` that the build makes manual page and
// completion with.

#include <CLI/CLI.hpp>
#include <optional>
#include <string>

namespace kvhive {

class CommandLine : public CLI::App {
 public:
  /// \param description  "kvhived: what it is for."
  CommandLine(const std::string& program, const std::string& description);

  /// Parses, and runs the callbacks of commands. Nothing = go on; otherwise the exit code, with
  /// everything printed.
  std::optional<int> read(int argc, char** argv);

 private:
  int explain(const CLI::ParseError& error) const;
};

}  // namespace kvhive
