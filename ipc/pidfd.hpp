#pragma once
// Process descriptors (pidfds). A pid can be given to another process after its process has ended;
// a pidfd always names the same process, and poll() tells reliably when that process has ended.

#include <sys/types.h>

#include "base/expected.hpp"
#include "base/unique_fd.hpp"

namespace kvhive {

[[nodiscard]] Expected<UniqueFd> pidfd_of(pid_t pid);

/// A pidfd of the process that connected this socket, from the kernel. Empty = the kernel is older
/// than Linux 6.5 and cannot tell. Errors: the process has ended and been collected.
[[nodiscard]] Expected<UniqueFd> pidfd_of_peer(int socket);

/// Whether the process has ended.
bool has_fired(const UniqueFd& pidfd);

/// Waits until the process has ended, at most `timeout_ms` (-1 = for ever). Returns whether it has.
bool wait_for_end(const UniqueFd& pidfd, int timeout_ms);

[[nodiscard]] Expected<void> signal_by_pidfd(const UniqueFd& pidfd, int signal);

/// Sends SIGKILL. Does nothing if `pidfd` is empty or the process has ended.
void kill_by_pidfd(const UniqueFd& pidfd);

/// Whether `fd`, which a peer sent, is a pidfd of process `pid`. A pidfd of another process would
/// let the peer have that process killed in its place. `pid` = 0: the peer is not visible in this
/// PID namespace, and any pidfd is accepted.
bool is_pidfd_of(const UniqueFd& fd, pid_t pid);

/// Whether the process is stopped by a signal or a debugger (states T and t in /proc/PID/stat).
bool is_stopped(pid_t pid);

}  // namespace kvhive
