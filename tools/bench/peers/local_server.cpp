#include "tools/bench/peers/local_server.hpp"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>

#include "base/check.hpp"

namespace kvhive::bench {
namespace {

UniqueFd connect_to(const std::filesystem::path& socket_path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  KV_CHECK(socket_path.native().size() < sizeof address.sun_path);
  std::memcpy(address.sun_path, socket_path.c_str(), socket_path.native().size());
  UniqueFd fd{socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)};
  constexpr int kBufferBytes = 4 << 20;
  setsockopt(fd.get(), SOL_SOCKET, SO_SNDBUF, &kBufferBytes, sizeof kBufferBytes);
  setsockopt(fd.get(), SOL_SOCKET, SO_RCVBUF, &kBufferBytes, sizeof kBufferBytes);
  if (connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0)
    return UniqueFd();
  return fd;
}

}  // namespace

LocalServer::LocalServer(std::vector<std::string> command, const std::filesystem::path& socket)
    : pid_(fork()), started_by_(getpid()) {
  KV_CHECK(pid_ >= 0);
  if (pid_ == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    const int nowhere = open("/dev/null", O_RDWR);
    for (const int fd : {0, 1, 2}) dup2(nowhere, fd);
    std::vector<char*> arguments;
    for (std::string& argument : command) arguments.push_back(argument.data());
    arguments.push_back(nullptr);
    execvp(arguments[0], arguments.data());
    _exit(127);
  }
  for (int attempt = 0; !connect_to(socket); ++attempt) {
    KV_CHECK(attempt < 2000 && waitpid(pid_, nullptr, WNOHANG) == 0, command[0], attempt);
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
}

LocalServer::~LocalServer() {
  if (getpid() != started_by_) return;
  kill(pid_, SIGKILL);  // the server has no data that must be saved
  waitpid(pid_, nullptr, 0);
}

LineSocket::LineSocket(const std::filesystem::path& socket)
    : fd_(connect_to(socket)), buffer_(std::size_t{64} << 10) {
  KV_CHECK(fd_, socket.native());
}

void LineSocket::send(std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t sent = ::send(fd_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    KV_CHECK(sent > 0, errno);
    bytes.remove_prefix(static_cast<std::size_t>(sent));
  }
}

void LineSocket::refill() {
  if (begin_ == end_) begin_ = end_ = 0;
  if (end_ == buffer_.size()) {
    std::copy(buffer_.begin() + static_cast<std::ptrdiff_t>(begin_), buffer_.end(),
              buffer_.begin());
    end_ -= std::exchange(begin_, 0);
  }
  const ssize_t got = read(fd_.get(), buffer_.data() + end_, buffer_.size() - end_);
  KV_CHECK(got > 0, errno);
  end_ += static_cast<std::size_t>(got);
}

std::string_view LineSocket::line() {
  while (true) {
    const std::string_view unread(buffer_.data() + begin_, end_ - begin_);
    const std::size_t end = unread.find("\r\n");
    if (end != unread.npos) {
      begin_ += end + 2;
      return unread.substr(0, end);
    }
    refill();
  }
}

void LineSocket::body(std::byte* to, std::size_t bytes) {
  const std::size_t buffered = std::min(bytes, end_ - begin_);
  std::memcpy(to, buffer_.data() + begin_, buffered);
  begin_ += buffered;
  to += buffered;
  bytes -= buffered;
  while (bytes > 0) {
    // The buffer is empty. The same call reads the block's bytes to `to` and the bytes after them
    // into the buffer.
    begin_ = end_ = 0;
    const iovec places[] = {{to, bytes}, {buffer_.data(), 256}};
    const ssize_t got = readv(fd_.get(), places, 2);
    KV_CHECK(got > 0, errno);
    const std::size_t of_block = std::min(bytes, static_cast<std::size_t>(got));
    end_ = static_cast<std::size_t>(got) - of_block;
    to += of_block;
    bytes -= of_block;
  }
  while (end_ - begin_ < 2) refill();
  begin_ += 2;
}

}  // namespace kvhive::bench
