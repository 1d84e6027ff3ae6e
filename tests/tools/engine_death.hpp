#pragma once
// The death of an engine that the test waits out.

#include "tests/tools/daemon.hpp"

namespace kvhive::testing {

/// SIGKILL, and waits until another process serves in the engine's place. False if none does.
inline bool kill_and_await_next(const Daemon& daemon, std::uint32_t engine) {
  const pid_t dead = daemon.status()["engines"][engine]["pid"];
  signal_process(dead, SIGKILL);
  return eventually([&] {
    const Json now = daemon.status()["engines"][engine];
    return now["state"] == "serving" && now["pid"] != dead;
  });
}

}  // namespace kvhive::testing
