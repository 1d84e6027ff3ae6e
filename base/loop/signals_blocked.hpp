#pragma once
// For threads that signals are not for.

#include <csignal>

namespace kvhive {

/// While it exists, threads that are started have all signals blocked but SIGSYS, which tells of a
/// refused system call and would end the process. Signals are for the process's other threads; with
/// SIGPIPE and SIGXFSZ blocked, write() returns EPIPE and EFBIG.
class SignalsBlocked {
 public:
  SignalsBlocked() {
    sigset_t all;
    sigfillset(&all);
    sigdelset(&all, SIGSYS);
    pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  SignalsBlocked(const SignalsBlocked&) = delete;
  SignalsBlocked& operator=(const SignalsBlocked&) = delete;
  ~SignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

 private:
  sigset_t before_;
};

}  // namespace kvhive
