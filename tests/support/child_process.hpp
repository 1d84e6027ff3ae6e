#pragma once
// A forked child that runs one function, and dies with its parent.

#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <utility>

#include "base/check.hpp"

namespace kvhive::testing {

class ChildProcess {
 public:
  ChildProcess() = default;

  /// Forks; the child runs `body` and ends with status 0. The caller must be single-threaded.
  template <class Body>
  explicit ChildProcess(Body&& body) : pid_(fork()) {
    KV_CHECK(pid_ >= 0);
    if (pid_ != 0) return;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    std::forward<Body>(body)();
    _exit(0);
  }

  ChildProcess(ChildProcess&& other) noexcept : pid_(std::exchange(other.pid_, 0)) {}
  ChildProcess& operator=(ChildProcess&& other) noexcept {
    std::swap(pid_, other.pid_);
    return *this;
  }
  ~ChildProcess() {
    if (pid_ > 0) kill_and_wait();
  }

  pid_t pid() const { return pid_; }
  void signal(int number) const { KV_CHECK(pid_ > 0 && kill(pid_, number) == 0, pid_, number); }

  /// Waits for the child's end. Returns waitpid's status.
  int wait() {
    int status = 0;
    while (waitpid(pid_, &status, 0) < 0) KV_CHECK(errno == EINTR, errno);
    pid_ = 0;
    return status;
  }
  /// For a caller that has waited for the child itself.
  void forget() { pid_ = 0; }
  /// True if SIGKILL ended the child, and it had not ended before.
  bool kill_and_wait() {
    signal(SIGKILL);
    const int status = wait();
    return WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
  }

 private:
  pid_t pid_ = 0;
};

/// True if the child ended by itself with status 0.
inline bool ended_well(int status) { return WIFEXITED(status) && WEXITSTATUS(status) == 0; }

}  // namespace kvhive::testing
