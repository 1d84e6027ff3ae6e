#pragma once
// A child process of the keeper: how it is started, and what is known of it.

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "base/expected.hpp"
#include "base/ids.hpp"
#include "base/unique_fd.hpp"
#include "config/cpu_bind.hpp"

namespace kvhive {

/// What an operator wants of an engine (operator_orders.hpp).
enum class Wanted : std::uint8_t {
  serving,
  drained,    ///< it takes no more requests, and stays
  restarted,  ///< when it is drained, it ends and is started again
  removed,    ///< when it is drained, it ends
};

struct Child {
  std::string name;     ///< its name in log lines: "engine 0"
  std::string program;  ///< file name, in the keeper's own directory
  ModelId model{};      ///< that an engine computes
  std::vector<std::string> flags;
  EnginePlace place{0, {}};       ///< 0 threads = OMP_NUM_THREADS is not set
  bool ends_with_keeper = false;  ///< the kernel kills it when the keeper ends
  /// It executes its program only when it is told to go, so that it can be written down before. If
  /// the keeper is killed before that, it ends.
  bool waits_for_go = false;
  std::vector<int> inherits;  ///< descriptors that stay open in it
  pid_t pid = 0;              ///< 0 = not running
  UniqueFd pidfd;
  UniqueFd gate;  ///< the child that waits for go has the other end
  std::uint32_t starts = 0;
  std::uint32_t young_deaths = 0;  ///< how many times in a row it ended soon after its start
  int last_exit_code = 0;          ///< -1 = a signal ended it, or it is not known
  bool is_end_known = true;        ///< this process was its parent
  std::chrono::steady_clock::time_point last_start{};
  Wanted wanted = Wanted::serving;
  bool is_drain_due = false;  ///< it is still to be told
  bool is_drained = false;    ///< it has said so

  bool is_running() const { return pid != 0; }
};

/// Descriptors that become a child's standard streams; -1 = the same as the keeper's.
struct Streams {
  int in = -1, out = -1, err = -1;
};

/// Forks and executes the child's program. On success the child's pidfd is open. The keeper watches
/// and signals the child by its pidfd, so it never reaches another process that was given the same
/// pid.
[[nodiscard]] Expected<void> start_child(Child& child, const Streams& streams = {});

/// Lets a child that waits execute its program.
void let_go(Child& child);

/// When a child that has ended is collected: it may take the kernel long (reaper.hpp).
enum class Collected : bool { later, at_once };

/// Waits for a child's end, and has it collected. Returns how it ended ("exit code 1", "signal 9").
/// If a keeper that was killed had started it, its parent is the front.
std::string collect(Child& child, Collected when = Collected::later);
/// The same, with what is known of the child's status.
std::string take_end(Child& child, int status);

/// The directory of the running program. kvhive's other programs are in the same directory.
std::string program_directory();

}  // namespace kvhive
