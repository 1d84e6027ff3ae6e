#pragma once
// A forked child that runs one function an instruction at a time (ptrace). Between two instructions
// the parent can read shared memory, kill the child, or leave it stopped.

#include <functional>

#include <sys/types.h>

namespace kvhive::testing {

class TracedChild {
 public:
  /// Forks. The child runs `body`, then `afterwards`, and ends with status 0; it stands before the
  /// first instruction of `body` when this returns. The caller must be single-threaded.
  explicit TracedChild(
      const std::function<void()>& body, const std::function<void()>& afterwards = [] {});
  TracedChild(const TracedChild&) = delete;
  TracedChild& operator=(const TracedChild&) = delete;
  /// Kills the child if it is alive.
  ~TracedChild();

  /// Runs one instruction. False if it was the last of `body`. Any other event than a step is a bug
  /// and ends the test.
  bool step();
  /// Kills the child by SIGKILL at this instruction and waits for its end.
  void kill();
  /// Ends tracing. The child stays stopped, as by SIGSTOP, until go_on().
  void leave_stopped();
  void go_on();
  /// Waits for the child's end. Returns waitpid's status.
  int wait();

  pid_t pid() const { return pid_; }

  /// Whether ptrace is allowed; some containers forbid it.
  static bool is_allowed();

 private:
  pid_t pid_ = 0;
};

}  // namespace kvhive::testing
