#pragma once
// The log: one line per event, with the process's name, on standard error. A log file becomes the
// process's standard error, so that it also gets what a library or a failed check prints. No other
// file includes spdlog.

#include <spdlog/spdlog.h>

#include <string>

#include "base/expected.hpp"

namespace kvhive {

/// Starts the log; main calls it once. `name` is printed in every line ("engine 1"); `level` is a
/// value of Options::log_level.
void start_log(const std::string& name, const std::string& level);

/// The same, but standard error becomes the file at `path`. Lines are appended to it, each with its
/// date and the process's pid. Several processes may write to the same file. An empty path leaves
/// standard error as it is. Errors: the file cannot be opened; then nothing has changed.
[[nodiscard]] Expected<void> start_log(const std::string& name, const std::string& level,
                                       const std::string& path);

/// Opens the log file at its path again, after the file was renamed (logrotate). On an error, lines
/// still go to the old file. Does nothing if there is no log file.
[[nodiscard]] Expected<void> reopen_log();

}  // namespace kvhive
