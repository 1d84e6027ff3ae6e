#pragma once
// Sends descriptors as a stranger does: as many as it likes, and never waiting.

#include <sys/socket.h>

#include <cstring>
#include <string_view>
#include <vector>

namespace kvhive::testing {

/// False = the socket's queue is full, the connection closed, or descriptors are refused.
inline bool send_descriptors(int socket, std::string_view bytes, const std::vector<int>& fds) {
  iovec piece{const_cast<char*>(bytes.data()), bytes.size()};
  msghdr message{};
  message.msg_iov = &piece;
  message.msg_iovlen = 1;
  std::vector<char> control(CMSG_SPACE(fds.size() * sizeof(int)));
  if (!fds.empty()) {
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(fds.size() * sizeof(int));
    std::memcpy(CMSG_DATA(header), fds.data(), fds.size() * sizeof(int));
  }
  return sendmsg(socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT) >= 0;
}

}  // namespace kvhive::testing
