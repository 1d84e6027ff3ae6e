#pragma once
// Ends an engine that cannot complete a step.

#include "base/expected.hpp"

namespace kvhive {

/// Logs the error and ends the process, so nothing of the step is published. For Errc::device_lost
/// the exit code is kExitDeviceLost (base/exit_codes.hpp), otherwise 1.
///
/// \param who  the part of the engine that failed, for the log line
[[noreturn]] void end_engine(const char* who, const Error& error);

}  // namespace kvhive
