#include "ipc/pidfd.hpp"

#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <string>

#ifndef SO_PEERPIDFD  // Linux 6.5
#define SO_PEERPIDFD 77
#endif

namespace kvhive {

Expected<UniqueFd> pidfd_of(pid_t pid) {
  UniqueFd fd{static_cast<int>(syscall(SYS_pidfd_open, pid, 0))};
  if (!fd) return os_failure("pidfd_open");
  return fd;
}

Expected<UniqueFd> pidfd_of_peer(int socket) {
  int fd = -1;
  socklen_t size = sizeof fd;
  if (getsockopt(socket, SOL_SOCKET, SO_PEERPIDFD, &fd, &size) == 0) return UniqueFd(fd);
  if (errno == ENOPROTOOPT) return UniqueFd();
  return os_failure("SO_PEERPIDFD");
}

bool has_fired(const UniqueFd& pidfd) { return wait_for_end(pidfd, 0); }

bool wait_for_end(const UniqueFd& pidfd, int timeout_ms) {
  using std::chrono::steady_clock;
  const auto end = steady_clock::now() + std::chrono::milliseconds(timeout_ms);
  while (true) {
    pollfd fd{pidfd.get(), POLLIN, 0};
    const int ready = poll(&fd, 1, timeout_ms);
    if (ready >= 0 || errno != EINTR) return ready > 0;
    if (timeout_ms < 0) continue;
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(end - steady_clock::now()).count();
    timeout_ms = static_cast<int>(std::max<std::int64_t>(0, left));
  }
}

Expected<void> signal_by_pidfd(const UniqueFd& pidfd, int signal) {
  if (syscall(SYS_pidfd_send_signal, pidfd.get(), signal, nullptr, 0) != 0)
    return os_failure("pidfd_send_signal");
  return {};
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

bool is_stopped(pid_t pid) {
  std::ifstream stat("/proc/" + std::to_string(pid) + "/stat");
  std::string line;
  std::getline(stat, line);
  const std::size_t name_end = line.rfind(')');  // "PID (NAME) STATE ...", and a name may hold ')'
  if (name_end == std::string::npos || name_end + 2 >= line.size()) return false;
  const char state = line[name_end + 2];
  return state == 'T' || state == 't';
}

}  // namespace kvhive
