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
  std::string name;     ///< as log lines call it: "engine 0"
  std::string program;  ///< file name, in the keeper's own directory
  std::vector<std::string> flags;
  std::uint32_t threads = 0;      ///< of compute; 0 = leave the environment alone
  bool ends_with_keeper = false;  ///< the kernel kills it when the keeper ends
  pid_t pid = 0;                  ///< 0 = not running
  UniqueFd pidfd;
  std::uint32_t starts = 0;
  std::uint32_t young_deaths = 0;  ///< in a row
  int last_exit_code = 0;          ///< -1 = it was a signal
  std::chrono::steady_clock::time_point last_start{};

  bool is_running() const { return pid != 0; }
};

/// Descriptors that become a child's standard streams; -1 = it has the keeper's.
struct Streams {
  int in = -1, out = -1, err = -1;
};

/// Forks and executes. On success the child's pidfd is open: watching and signalling it can never
/// hit another process that was given the same pid.
[[nodiscard]] Expected<void> start_child(Child& child, const Streams& streams = {});

/// Collects a child whose pidfd has fired; says how it ended ("exit code 1", "signal 9").
std::string collect(Child& child);

/// The directory of the running program, in which kvhive's other programs are, too.
std::string program_directory();

}  // namespace kvhive
