#pragma once
// The log: one line for each event, with the process's name, on standard error.
// A log file takes the place of standard error, so that what a library or a
// failed check prints there is in it, too. The only file that includes spdlog.

#include <spdlog/spdlog.h>

#include <string>

#include "base/expected.hpp"

namespace kvhive {

/// Call once in main: `name` is printed in every line ("engine 1"), `level` is
/// one of Options::log_level's.
void start_log(const std::string& name, const std::string& level);

/// The same, but standard error becomes the file at `path`, to which lines are
/// appended, each with its date and the process's pid. Several processes may
/// write to one file. An empty path leaves standard error as it is. Errors: the
/// file cannot be opened; nothing has changed then.
[[nodiscard]] Expected<void> start_log(const std::string& name, const std::string& level,
                                       const std::string& path);

/// Opens the log file at its path again, after it was moved away (logrotate).
/// On an error lines go to the file that was open. Does nothing without a log
/// file.
[[nodiscard]] Expected<void> reopen_log();

}  // namespace kvhive
