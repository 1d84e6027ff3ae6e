#pragma once
// A socket pair that carries numbers and descriptors between a test and its children, in order.

#include <sys/socket.h>

#include <array>
#include <cstdint>
#include <cstring>

#include "base/check.hpp"
#include "base/unique_fd.hpp"

namespace kvhive::testing {

class DescriptorLine {
 public:
  DescriptorLine() {
    int ends[2];
    KV_CHECK(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) == 0);
    parent_ = UniqueFd(ends[0]);
    child_ = UniqueFd(ends[1]);
  }
  int parent() const { return parent_.get(); }
  int child() const { return child_.get(); }

  static void send(int end, std::uint64_t number, int fd = -1) {
    iovec bytes{&number, sizeof number};
    alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
    msghdr message{};
    message.msg_iov = &bytes;
    message.msg_iovlen = 1;
    if (fd >= 0) {
      message.msg_control = control.data();
      message.msg_controllen = control.size();
      cmsghdr* header = CMSG_FIRSTHDR(&message);
      header->cmsg_level = SOL_SOCKET;
      header->cmsg_type = SCM_RIGHTS;
      header->cmsg_len = CMSG_LEN(sizeof fd);
      std::memcpy(CMSG_DATA(header), &fd, sizeof fd);
    }
    KV_CHECK(sendmsg(end, &message, MSG_NOSIGNAL) == sizeof number, errno);
  }

  struct Received {
    std::uint64_t number = 0;
    UniqueFd fd;
  };
  static Received receive(int end) {
    Received received;
    iovec bytes{&received.number, sizeof received.number};
    alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
    msghdr message{};
    message.msg_iov = &bytes;
    message.msg_iovlen = 1;
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    KV_CHECK(recvmsg(end, &message, MSG_CMSG_CLOEXEC) == sizeof received.number, errno);
    if (const cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(header), sizeof fd);
      received.fd = UniqueFd(fd);
    }
    return received;
  }

 private:
  UniqueFd parent_, child_;
};

}  // namespace kvhive::testing
