#pragma once
// The log: one line per event, with the process's name, on standard error. A log file becomes the
// process's standard error, so that it also gets what a library or a failed check prints. No other
// file includes spdlog, except this one's source.
//
// Logging never waits and never ends the process: a thread writes the lines
// (base/logging/log_writer.hpp). Lines that standard error does not take are dropped and counted.
// Use spdlog::critical only just before the process ends: it waits until its line is written, for
// at most LogWriter::kMostPatience.

#include <spdlog/spdlog.h>

#include <string>
#include <string_view>

#include "base/expected.hpp"

namespace kvhive {

/// Starts the log; main calls it once. `name` is printed in every line ("engine 1"); `level` is a
/// value of Options::log_level. If `path` is not empty, standard error becomes the file at `path`.
/// Lines are appended to it, each with its date and the process's pid. Several processes may write
/// to the same file. Errors: the file cannot be opened, or there is no thread to write the log;
/// then nothing has changed.
[[nodiscard]] Expected<void> start_log(const std::string& name, const std::string& level,
                                       const std::string& path);

/// A value of Options::log_level; lines below it are not written from now on.
void set_log_level(const std::string& level);

/// Opens the log file at its path again, after the file was renamed (logrotate). On an error, lines
/// still go to the old file. Does nothing if there is no log file.
[[nodiscard]] Expected<void> reopen_log();

/// Waits until all lines are written, for at most LogWriter::kMostPatience. For a process that is
/// about to end without exit(), or to execute another program. exit() does it by itself.
void flush_log();

/// Writes a line to standard error as it is, after the lines of the log. If the log has started, it
/// waits no longer than flush_log(); otherwise as long as the reader makes it wait.
void print_error_line(std::string_view line);

}  // namespace kvhive
