#pragma once
// Descriptors of every kind that a hostile process can put into a packet.

#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <deque>
#include <vector>

#include "base/unique_fd.hpp"
#include "tests/support/lingering_socket.hpp"
#include "tests/support/send_descriptors.hpp"

namespace kvhive::testing {

enum class DescriptorKind : std::uint8_t {
  null_device,
  directory,
  pipe_of_nobody,  ///< no process writes to it
  full_eventfd,    ///< blocking, and a write would block
  growing_memory,  ///< no seals, sparse, a terabyte long
  sealed_memory,   ///< with all seals
  pidfd_of_init,   ///< of another process than the sender
  pidfd_of_sender,
  epoll_of_epoll,    ///< that watches the connection it is sent over, and another epoll
  socket_in_flight,  ///< a socket whose queue holds its own other end
  the_connection,    ///< the sender's end of the connection it is sent over
  timer,
  lingering,  ///< the last close() waits for an hour
  count,
};

/// Makes such descriptors and keeps their other ends.
class StrangerDescriptors {
 public:
  /// \param connection  the sender's end of the connection
  int make(DescriptorKind kind, int connection) {
    switch (kind) {
      case DescriptorKind::null_device: return keep(open("/dev/null", O_RDWR | O_CLOEXEC));
      case DescriptorKind::directory: return keep(open("/proc/self", O_DIRECTORY | O_CLOEXEC));
      case DescriptorKind::pipe_of_nobody: return make_pipe();
      case DescriptorKind::full_eventfd: return make_full_eventfd();
      case DescriptorKind::growing_memory: return make_memory(0);
      case DescriptorKind::sealed_memory:
        return make_memory(F_SEAL_SEAL | F_SEAL_GROW | F_SEAL_SHRINK | F_SEAL_WRITE);
      case DescriptorKind::pidfd_of_init: return keep(pidfd(1));
      case DescriptorKind::pidfd_of_sender: return keep(pidfd(getpid()));
      case DescriptorKind::epoll_of_epoll: return make_epolls(connection);
      case DescriptorKind::socket_in_flight: return make_socket_in_flight();
      case DescriptorKind::the_connection: return connection;
      case DescriptorKind::timer: return keep(timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC));
      case DescriptorKind::lingering: return lingering_.emplace_back(3600).socket.get();
      case DescriptorKind::count: break;
    }
    return -1;
  }

  /// Closes this process's copies, so that those in packets are the last ones.
  void close_own() {
    kept_.clear();
    close_lingering();
  }

  /// Closes the lingering ones only: a process that the keeper forks to close descriptors would
  /// otherwise inherit them from this process, and wait for an hour.
  void close_lingering() {
    for (LingeringSocket& lingering : lingering_)
      if (lingering.socket) lingering.close_own();
  }

 private:
  int keep(int fd) {
    KV_CHECK(fd >= 0, errno);
    kept_.emplace_back(fd);
    return fd;
  }
  static int pidfd(pid_t pid) { return static_cast<int>(syscall(SYS_pidfd_open, pid, 0)); }
  int make_pipe() {
    int ends[2];
    KV_CHECK(pipe2(ends, O_CLOEXEC) == 0, errno);
    keep(ends[1]);
    return keep(ends[0]);
  }
  int make_full_eventfd() {
    const int fd = keep(eventfd(0, EFD_CLOEXEC));
    const std::uint64_t most = ~std::uint64_t{0} - 1;
    KV_CHECK(write(fd, &most, sizeof most) == sizeof most, errno);
    return fd;
  }
  int make_memory(int seals) {
    const int fd = keep(memfd_create("kvhive-pool", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    KV_CHECK(ftruncate(fd, off_t{1} << 40) == 0 && fcntl(fd, F_ADD_SEALS, seals) == 0, errno);
    return fd;
  }
  int make_epolls(int connection) {
    const int inner = keep(epoll_create1(EPOLL_CLOEXEC)),
              outer = keep(epoll_create1(EPOLL_CLOEXEC));
    epoll_event event{};
    event.events = EPOLLIN | EPOLLOUT;
    KV_CHECK(epoll_ctl(inner, EPOLL_CTL_ADD, connection, &event) == 0, errno);
    KV_CHECK(epoll_ctl(outer, EPOLL_CTL_ADD, inner, &event) == 0, errno);
    return outer;
  }
  int make_socket_in_flight() {
    int ends[2];
    KV_CHECK(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) == 0, errno);
    keep(ends[0]);
    keep(ends[1]);
    send_descriptors(ends[0], "x", {ends[0], ends[1]});
    return ends[1];
  }

  std::vector<UniqueFd> kept_;
  std::deque<LingeringSocket> lingering_;
};

}  // namespace kvhive::testing
