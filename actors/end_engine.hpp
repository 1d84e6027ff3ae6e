#pragma once
// Ends an engine that cannot complete a step.

#include "base/expected.hpp"

namespace kvhive {

/// Ends the process; nothing of the step is published. A lost device has an exit code of its own
/// (base/exit_codes.hpp).
[[noreturn]] void end_engine(const char* who, const Error& error);

}  // namespace kvhive
