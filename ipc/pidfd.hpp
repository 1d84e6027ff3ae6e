#pragma once
// Process descriptors (pidfds). Unlike a pid, a pidfd never comes to mean another process that was
// given the same number, and poll() tells reliably when its process has ended.

#include <sys/types.h>

#include "base/expected.hpp"
#include "base/unique_fd.hpp"

namespace kvhive {

[[nodiscard]] Expected<UniqueFd> pidfd_of(pid_t pid);

/// Whether the process has ended.
bool has_fired(const UniqueFd& pidfd);

/// Waits until the process has ended, at most `timeout_ms` (-1 = for ever). Returns whether it has.
bool wait_for_end(const UniqueFd& pidfd, int timeout_ms);

[[nodiscard]] Expected<void> signal_by_pidfd(const UniqueFd& pidfd, int signal);

/// SIGKILL. Does nothing if `pidfd` is empty or the process has ended.
void kill_by_pidfd(const UniqueFd& pidfd);

/// Whether a descriptor that a peer sent is a pidfd of `pid`: not another process's (which would be
/// killed in the peer's place), nor another kind of file. `pid` = 0 for a peer that is not visible
/// in this PID namespace: then any pidfd will do.
bool is_pidfd_of(const UniqueFd& fd, pid_t pid);

}  // namespace kvhive
