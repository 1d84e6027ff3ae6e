#pragma once
// Sends a signal to one process.

#include <signal.h>

#include "base/check.hpp"

namespace kvhive::testing {

/// Refuses pid 0 and -1, which a test may get when it reads a pid too early. kill(2) would signal
/// this test's process group, CTest included, or all processes.
inline void signal_process(pid_t pid, int number) {
  KV_CHECK(pid > 0, pid, number);
  ::kill(pid, number);
}

}  // namespace kvhive::testing
