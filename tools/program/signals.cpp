#include "tools/program/signals.hpp"

#include <sys/signalfd.h>
#include <unistd.h>

#include <csignal>

namespace kvhive {

Expected<UniqueFd> signals_as_descriptor(std::initializer_list<int> signals) {
  sigset_t set;
  sigemptyset(&set);
  for (const int signal : signals) sigaddset(&set, signal);
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
  UniqueFd descriptor(signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!descriptor) return os_failure("signalfd");
  return descriptor;
}

int next_signal(int descriptor) {
  signalfd_siginfo signal{};
  const bool has_one = read(descriptor, &signal, sizeof signal) == sizeof signal;
  return has_one ? static_cast<int>(signal.ssi_signo) : 0;
}

}  // namespace kvhive
