#pragma once
// Reading a pool whose keeper does not answer. The keeper holds the pool's memory objects open, and
// Linux lets a process of the same user open them anew through /proc/PID/fd, stopped or not.

#include <sys/types.h>

#include <optional>
#include <string>

#include "config/pool_geometry.hpp"
#include "pool/pool_memory.hpp"

namespace kvhive {

/// The process that listens at the other end of a connected socket; 0 = not visible from this PID
/// namespace.
pid_t peer_of(int socket);

/// The process that listens on the socket at `path`, found in /proc; nothing if this user cannot
/// see it. For when even connecting has to wait: a stopped listener accepts nothing, and its queue
/// fills.
std::optional<pid_t> listener_on(const std::string& path);

/// The keeper that works for the daemon that was started as process `daemon`, or that process
/// itself if it has none.
pid_t keeper_of(pid_t daemon);

/// Opens those memory objects of a pool that `process` holds open, read-only; the device and host
/// tiers' bytes are left out. Empty where it holds none, or may not be looked into.
enum class Tokens : std::uint8_t { left_out, included };
PoolFds open_pool_of(pid_t process, Tokens tokens);

}  // namespace kvhive
