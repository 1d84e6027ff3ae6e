// Packets that any process may send to the daemon's socket, or a daemon to its client.

#include <sys/socket.h>

#include "base/check.hpp"
#include "ipc/protocol.hpp"
#include "tests/fuzz/fuzz_input.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace kvhive;
  static const auto ends = [] {
    std::array<int, 2> pair;
    KV_CHECK(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK, 0, pair.data()) == 0);
    return pair;
  }();
  testing::FuzzInput input(data, size);
  const int descriptors = input.take<std::uint8_t>() & 3;
  std::string bytes = input.rest();
  if (bytes.empty()) return 0;  // an empty packet would read as a closed connection

  iovec piece{bytes.data(), bytes.size()};
  msghdr message{};
  message.msg_iov = &piece;
  message.msg_iovlen = 1;
  alignas(cmsghdr) std::array<char, CMSG_SPACE(4 * sizeof(int))> control{};
  if (descriptors != 0) {
    message.msg_control = control.data();
    message.msg_controllen = CMSG_SPACE(static_cast<std::size_t>(descriptors) * sizeof(int));
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(static_cast<std::size_t>(descriptors) * sizeof(int));
    for (int i = 0; i < descriptors; ++i)
      std::memcpy(CMSG_DATA(header) + static_cast<std::size_t>(i) * sizeof(int), &ends[1],
                  sizeof(int));
  }
  // Fails if the packet is too long for the socket.
  if (sendmsg(ends[0], &message, MSG_NOSIGNAL) < 0) return 0;
  auto packet = receive_packet(ends[1]);
  if (!packet || !*packet) return 0;
  if (const auto hello = (*packet)->as<EngineHello>())
    KV_CHECK(hello->model.str().size() <= sizeof hello->model);
  if (const auto refused = (*packet)->as<Refused>())
    KV_CHECK(error_of(*refused).text.size() <= sizeof refused->reason);
  if (const auto welcome = (*packet)->as<EngineWelcome>())
    (void)take_pool_fds(welcome->objects, (*packet)->fds);
  KV_CHECK((*packet)->tail().size() <= bytes.size());
  return 0;
}
