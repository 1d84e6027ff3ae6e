#pragma once
// How every program of kvhive ends: an error is one line on standard error and exit code 1;
// standard output that could not be written is an error, too.

#include "base/expected.hpp"

namespace kvhive {

/// Exit code of a program whose output goes to a pipe without a reader: the one that a shell shows
/// for a process that SIGPIPE ended.
inline constexpr int kExitPipeClosed = 128 + 13;

/// Runs a program to its exit code, flushes standard output and reports errors.
int run_program(const char* name, Expected<int> (*run)(int, char**), int argc, char** argv);

}  // namespace kvhive
