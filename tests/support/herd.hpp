#pragma once
// What a hostile client can hang on a descriptor: each of `epolls` epolls waits for each of
// `copies` copies of it. Whoever makes the descriptor readable, or closes it last, wakes them all.

#include <fcntl.h>
#include <sys/epoll.h>

#include <cstddef>
#include <vector>

#include "base/unique_fd.hpp"

namespace kvhive::testing {

class Herd {
 public:
  /// Is smaller if this process may not have so many descriptors.
  Herd(int fd, std::size_t epolls, std::size_t copies) {
    for (std::size_t i = 0; i < copies; ++i) {
      UniqueFd copy{fcntl(fd, F_DUPFD_CLOEXEC, 0)};
      if (copy) copies_.push_back(std::move(copy));
    }
    for (std::size_t i = 0; i < epolls; ++i) {
      UniqueFd epoll{epoll_create1(EPOLL_CLOEXEC)};
      if (!epoll) return;
      for (const UniqueFd& copy : copies_) {
        epoll_event event{};
        event.events = EPOLLIN | EPOLLET;
        if (epoll_ctl(epoll.get(), EPOLL_CTL_ADD, copy.get(), &event) == 0) ++waiting_;
      }
      epolls_.push_back(std::move(epoll));
    }
  }
  std::size_t waiting() const { return waiting_; }
  const std::vector<UniqueFd>& epolls() const { return epolls_; }

 private:
  std::vector<UniqueFd> copies_, epolls_;
  std::size_t waiting_ = 0;
};

}  // namespace kvhive::testing
