#pragma once
// Tells of system calls that a filter has refused. The kernel sends SIGSYS to the thread that made
// the call; the handler counts it and makes the call return ENOSYS; a thread of its own logs it.

#include "base/expected.hpp"

namespace kvhive {

/// Installs the handler and starts the thread. To be called once, after the log has started.
[[nodiscard]] Expected<void> report_refused_calls();

}  // namespace kvhive
