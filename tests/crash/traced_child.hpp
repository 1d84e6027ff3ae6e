#pragma once
// A forked child that runs one function an instruction at a time (ptrace). Between two instructions
// the parent can read shared memory, kill the child, leave it stopped, or make a copy of it.

#include <sys/types.h>
#include <sys/user.h>

#include <array>
#include <functional>

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
  /// The registers before the next instruction. The instruction's bytes can be read in this process
  /// at registers.rip, because the child is a fork.
  user_regs_struct registers() const;
  /// Whether the next instruction is a system call.
  static bool is_system_call(const user_regs_struct& registers);

  /// A copy of the child that stands at the same instruction. Both have the same shared memory and
  /// descriptors, until call() gives the copy others.
  TracedChild clone() const;
  /// The child makes this system call and then stands where it stood. Returns the call's result.
  long call(long number, std::array<unsigned long, 6> arguments) const;

  /// Lets the child run until `body` has ended, or, after that, until its next pause(). False if it
  /// ended instead, or would end by a signal.
  bool run();
  /// Called in the child, in `afterwards`.
  static void pause();

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
  explicit TracedChild(pid_t pid) : pid_(pid) {}

  pid_t pid_ = 0;
};

}  // namespace kvhive::testing
