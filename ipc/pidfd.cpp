#include "ipc/pidfd.hpp"

#include <poll.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <string>

namespace kvhive {

Expected<UniqueFd> pidfd_of(pid_t pid) {
  UniqueFd fd{static_cast<int>(syscall(SYS_pidfd_open, pid, 0))};
  if (!fd) return os_failure("pidfd_open");
  return fd;
}

bool has_fired(const UniqueFd& pidfd) {
  pollfd poll_one{pidfd.get(), POLLIN, 0};
  return poll(&poll_one, 1, 0) > 0;
}

void kill_by_pidfd(const UniqueFd& pidfd) {
  if (pidfd) syscall(SYS_pidfd_send_signal, pidfd.get(), SIGKILL, nullptr, 0);
}

bool is_pidfd_of(const UniqueFd& fd, pid_t pid) {
  std::ifstream info("/proc/self/fdinfo/" + std::to_string(fd.get()));
  for (std::string line; std::getline(info, line);)
    if (line.rfind("Pid:", 0) == 0) return pid == 0 || std::atoi(line.c_str() + 4) == pid;
  return false;
}

}  // namespace kvhive
