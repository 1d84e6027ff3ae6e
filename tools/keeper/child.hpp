#pragma once
// A process the keeper started and keeps going.

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "base/expected.hpp"
#include "base/unique_fd.hpp"

namespace kvhive {

struct Child {
  std::string program;  ///< file name, beside the keeper's own
  std::vector<std::string> flags;
  std::uint32_t threads = 0;  ///< of compute; 0 = leave the environment alone
  bool ends_with_us = false;  ///< killed by the kernel when the keeper ends
  pid_t pid = 0;              ///< 0 = not running
  UniqueFd pidfd;
  std::uint32_t starts = 0;
  std::uint32_t young_deaths = 0;  ///< one after the other
  int last_exit_code = 0;          ///< -1 = it was a signal
  std::chrono::steady_clock::time_point last_start{};

  bool is_running() const { return pid != 0; }
};

/// What takes the place of a child's standard streams; -1 = ours.
struct Streams {
  int in = -1, out = -1, err = -1;
};

/// Forks and executes. On success the child's pidfd is open: it can be watched and signalled
/// without ever meeting a process that reuses the pid.
Expected<void> start(Child& child, const Streams& streams = {});

/// Collects a child whose pidfd has fired; says how it ended ("exit code 1", "signal 9").
std::string collect(Child& child);

/// Where this program's siblings are.
std::string program_directory();

}  // namespace kvhive
