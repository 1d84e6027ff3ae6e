#pragma once
// The end of an engine that cannot do a step's work.

#include "base/expected.hpp"

namespace kvhive {

/// Ends the process with nothing of the step published; a lost device has an exit code of its own
/// (config/exit_codes.hpp).
[[noreturn]] void end_engine(const char* who, const Error& error);

}  // namespace kvhive
