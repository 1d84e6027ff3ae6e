#pragma once
// What the daemon's processes use, while and after they are attacked.

#include <cstddef>
#include <map>
#include <vector>

#include "tests/tools/daemon.hpp"

namespace kvhive::testing {

struct Census {
  std::size_t keeper_bytes = 0, keeper_descriptors = 0;
  std::size_t engine_bytes = 0, engine_descriptors = 0;  ///< of the engine that has most
  std::size_t channel_bytes = 0;                         ///< granted to all clients
  std::size_t channel_bytes_of_user = 0;                 ///< to the one that has most, but not root
  std::size_t connections = 0;                           ///< clients with a channel

  static Census of(const Daemon& daemon, const Json& status);
  /// The larger one of each number.
  void widen(const Census& other);
};

/// The daemon's processes as its status names them, and how often one had to be replaced.
struct Processes {
  std::vector<pid_t> all;
  int restarts = 0;

  static Processes in(const Json& status);
};

}  // namespace kvhive::testing
