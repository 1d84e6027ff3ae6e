#pragma once
// A forked child that runs one function an instruction at a time (ptrace). Between two instructions
// it can be looked at, killed, or left lying there.

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
  /// Kills it if it still lives.
  ~TracedChild();

  /// One instruction. False if that was the last of `body`; anything but a step is a bug, and ends
  /// the test.
  bool step();
  /// SIGKILL, here and now, and waits until it is gone.
  void kill();
  /// No more tracing: the child lies stopped, as by SIGSTOP, until it is told to go on.
  void leave_stopped();
  void go_on();
  /// waitpid's status, once it has ended.
  int wait();

  pid_t pid() const { return pid_; }

  /// Some containers forbid it.
  static bool is_allowed();

 private:
  pid_t pid_ = 0;
};

}  // namespace kvhive::testing
