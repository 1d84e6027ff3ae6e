#pragma once
// A file that a hostile process could send: whoever closes it last waits.

#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>

#include "base/check.hpp"
#include "base/unique_fd.hpp"

namespace kvhive::testing {

/// A TCP connection to this process with unsent data, and SO_LINGER: its last close() waits for
/// `seconds`, unless the closing process is ending. Nobody reads at the other end.
struct LingeringSocket {
  explicit LingeringSocket(int seconds) {
    listener = UniqueFd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const int small = 4096;
    setsockopt(listener.get(), SOL_SOCKET, SO_RCVBUF, &small, sizeof small);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    auto* name = reinterpret_cast<sockaddr*>(&address);
    KV_CHECK(bind(listener.get(), name, size) == 0 && listen(listener.get(), 1) == 0, errno);
    KV_CHECK(getsockname(listener.get(), name, &size) == 0, errno);
    socket = UniqueFd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    KV_CHECK(connect(socket.get(), name, size) == 0, errno);
    const std::array<char, 65536> data{};
    while (send(socket.get(), data.data(), data.size(), MSG_DONTWAIT) > 0) {
    }
    const linger wait{1, seconds};
    KV_CHECK(setsockopt(socket.get(), SOL_SOCKET, SO_LINGER, &wait, sizeof wait) == 0, errno);
  }
  /// Closes this process's copy without waiting, though it may be the last one: another process is
  /// the last that has it, and ends.
  void close_own() {
    const pid_t last = fork();
    KV_CHECK(last >= 0, errno);
    while (last == 0) pause();
    socket = UniqueFd();
    KV_CHECK(kill(last, SIGKILL) == 0, errno);
    while (waitpid(last, nullptr, 0) != last) KV_CHECK(errno == EINTR, errno);  // a fuzzer's alarm
  }
  ~LingeringSocket() {
    listener = UniqueFd();  // resets the connection, so that nothing lingers at the end of a test
  }

  UniqueFd listener, socket;
};

}  // namespace kvhive::testing
