#pragma once
// Bash completion of a program, from the same definitions as --help.

#include <CLI/CLI.hpp>
#include <string>

namespace kvhive {

/// A script that bash sources: completes commands, options, choices, files and directories.
std::string bash_completion(const CLI::App& app);

}  // namespace kvhive
