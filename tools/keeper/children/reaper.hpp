#pragma once
// Collects children that have ended, where nobody waits for it. It may take the kernel seconds: it
// drops the process's entries of /proc first, and while others are dropping some of them it tries
// again and again (shrink_dcache_parent(); 12 s were seen on a busy machine).

#include <signal.h>
#include <sys/types.h>

#include <tl/expected.hpp>

namespace kvhive {

/// The name of threads that collect children, as ps and top show it.
inline constexpr const char* kReaperName = "kvhived-reaper";

/// What waitpid() tells, of what waitid() tells.
int wait_status_of(const siginfo_t& end);

enum class IfItRuns : bool { say_so, wait };
enum class NoEnd { it_runs, no_child };  ///< no_child: it is another process's, or was collected

/// How a child has ended, as waitpid() tells it. It is left to be collected.
tl::expected<int, NoEnd> end_of_child(pid_t child, IfItRuns if_it_runs);

/// Has an ended child collected in a thread of its own, or at once if the system gives no thread.
void collect_later(pid_t child);

}  // namespace kvhive
