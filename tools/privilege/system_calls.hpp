#pragma once
// Allow-lists of system calls (seccomp).

#include "base/expected.hpp"
#include "config/options.hpp"
#include "tools/privilege/call_lists.hpp"

namespace kvhive {

/// From now on, all threads of this process, and all that it starts, can make only the calls in
/// the program's list. Any other call fails with ENOSYS and is logged: by this process, or for the
/// keeper, whose children inherit the filter, by the kernel. Does nothing with
/// SystemCallFilter::off and under sanitizers, which make calls of their own. If the kernel does
/// not let a process filter its calls: an error with `on`, a warning with `automatic`.
[[nodiscard]] Expected<void> keep_only_calls_of(Program program, SystemCallFilter wanted);

}  // namespace kvhive
