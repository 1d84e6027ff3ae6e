#pragma once
// A signal for one process.

#include <signal.h>

#include "base/check.hpp"

namespace kvhive::testing {

/// kill(2) takes 0 for our own process group, CTest included, and -1 for everybody: what a test
/// that has read a pid too early must never do.
inline void signal_process(pid_t pid, int number) {
  KV_CHECK(pid > 0, pid, number);
  ::kill(pid, number);
}

}  // namespace kvhive::testing
