#pragma once
// Processes by pidfd: the one thing that tells truly when a process is gone, and that cannot mean
// another one that was given its number.

#include <sys/types.h>

#include "base/expected.hpp"
#include "base/unique_fd.hpp"

namespace kvhive {

Expected<UniqueFd> pidfd_of(pid_t pid);

/// Whether the process is gone.
bool has_fired(const UniqueFd& pidfd);

void kill_by_pidfd(const UniqueFd& pidfd);

/// Whether a descriptor that somebody sent is a pidfd of `pid`, and not of some other process
/// (which we might kill in its place), nor any other file. A peer in a PID namespace we cannot see
/// into has no pid to compare: 0.
bool is_pidfd_of(const UniqueFd& fd, pid_t pid);

}  // namespace kvhive
