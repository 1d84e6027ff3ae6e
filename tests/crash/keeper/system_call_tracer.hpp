#pragma once
// Stops a running process before each of its system calls (ptrace), in all its threads. Processes
// that it forks are not traced.

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <set>
#include <string>

#include "base/unique_fd.hpp"

namespace kvhive::testing {

class SystemCallTracer {
 public:
  /// Seizes and stops all threads of a running process.
  explicit SystemCallTracer(pid_t pid);

  struct FromItsExec {};
  /// Seizes a process that waits and then calls exec(); its system calls count from there on. When
  /// it forks for the first time, that process is traced in its place.
  SystemCallTracer(pid_t pid, FromItsExec);

  SystemCallTracer(const SystemCallTracer&) = delete;
  SystemCallTracer& operator=(const SystemCallTracer&) = delete;
  /// Detaches.
  ~SystemCallTracer();

  /// A thread that stands before a system call.
  struct Boundary {
    pid_t thread = 0;
    std::uint64_t call = 0;  ///< number of the system call (SYS_...)
  };
  /// Lets the process run until a thread stands before a system call. The thread stands there until
  /// the next call of a member function; the other threads run on to their own next calls.
  ///
  /// \param until  nothing is returned once this is readable and all threads sleep in the kernel,
  ///               or once the process has ended
  std::optional<Boundary> next(const UniqueFd& until);
  /// Lets the thread that stands at this boundary do its system call, which must not wait; the
  /// thread then stands after it.
  void finish(const Boundary& boundary);

  /// Kills the process by SIGKILL where it stands and waits for its end.
  void kill();
  /// Lets the process go on untraced.
  void detach();
  /// The process that is traced.
  pid_t pid() const { return pid_; }
  /// Status of waitpid() if the process ended while it was traced.
  std::optional<int> end() const { return end_; }

  /// Whether this system allows ptrace.
  static bool is_allowed();

 private:
  SystemCallTracer(pid_t pid, long options);
  bool seize_new_threads();
  void resume(pid_t thread, int signal);
  std::optional<Boundary> take_event();
  std::optional<Boundary> on_event(pid_t thread, int status);
  void on_end(pid_t thread, int status);
  bool is_asleep();
  void learn_of_new_thread(pid_t thread);
  void turn_to_child(pid_t parent);
  bool release(pid_t thread);

  pid_t pid_;
  long options_;
  std::set<pid_t> threads_;
  std::set<pid_t> standing_;  ///< of these, those that do not run
  /// The threads' states and counts of context switches at the last is_asleep(); the same again =
  /// no thread has run.
  std::string last_states_;
  UniqueFd child_events_;  ///< a signalfd of SIGCHLD, which is blocked meanwhile
  bool was_blocked_ = false;
  std::optional<int> end_;
};

}  // namespace kvhive::testing
