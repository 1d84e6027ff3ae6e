#include "ipc/protocol.hpp"

#include <poll.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <iterator>
#include <memory>

#include "base/check.hpp"
#include "ipc/pidfd.hpp"

#ifndef SO_PASSRIGHTS  // Linux 6.16
#define SO_PASSRIGHTS 83
#endif

namespace kvhive {
namespace {

/// Checks the header of a received packet of `size` bytes. `is_cut` = the packet was larger than
/// the buffer.
Expected<void> check_header(const PacketHeader& header, std::size_t size, bool is_cut) {
  // The version is checked first, because packets of other versions have other sizes.
  if (size >= offsetof(PacketHeader, type) && header.magic == kProtocolMagic &&
      header.version != kProtocolVersion)
    return failure(Errc::layout_mismatch, "the other side speaks protocol " +
                                              std::to_string(header.version) + ", this program " +
                                              std::to_string(kProtocolVersion) +
                                              "; use programs of the same build");
  if (size < sizeof header || is_cut || header.magic != kProtocolMagic)
    return failure(Errc::bad_format,
                   "a packet of " + std::to_string(size) + " bytes is not kvhive's");
  const auto expected = payload_bytes(header.type);
  if (!expected || header.payload_bytes != *expected || size - sizeof header < *expected)
    return failure(Errc::bad_format, "a packet of " + std::to_string(size) +
                                         " bytes is not a message of type " +
                                         std::to_string(std::uint32_t(header.type)));
  return {};
}

/// The error when a daemon runs but does not answer in time.
tl::unexpected<Error> no_answer(int timeout_ms) {
  return failure(Errc::not_running,
                 "the daemon has not answered for " + std::to_string(timeout_ms) +
                     " ms; it is starting, stopped (kill -CONT it) or overloaded");
}

}  // namespace

Expected<sockaddr_un> address_of(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof address.sun_path)
    return failure(Errc::bad_argument, "socket path '" + path + "' is longer than the system's " +
                                           std::to_string(sizeof address.sun_path - 1) +
                                           " bytes; choose a shorter one");
  std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
  return address;
}

Expected<void> send_bytes(int socket, MessageType type, std::span<const std::byte> payload,
                          const std::vector<int>& fds, std::string_view tail) {
  PacketHeader packet_header;
  packet_header.type = type;
  packet_header.payload_bytes = static_cast<std::uint32_t>(payload.size());
  iovec parts[] = {{&packet_header, sizeof packet_header},
                   {const_cast<std::byte*>(payload.data()), payload.size()},
                   {const_cast<char*>(tail.data()), std::min(tail.size(), kMostTail)}};
  alignas(cmsghdr) char control[CMSG_SPACE(kMostFds * sizeof(int))] = {};
  msghdr header{};
  header.msg_iov = parts;
  header.msg_iovlen = std::size(parts);
  KV_CHECK(fds.size() <= kMostFds, fds.size());
  if (!fds.empty()) {
    header.msg_control = control;
    header.msg_controllen = CMSG_SPACE(fds.size() * sizeof(int));
    cmsghdr* c = CMSG_FIRSTHDR(&header);
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(fds.size() * sizeof(int));
    std::memcpy(CMSG_DATA(c), fds.data(), fds.size() * sizeof(int));
  }
  if (sendmsg(socket, &header, MSG_NOSIGNAL) >= 0) return {};
  if (errno == EPIPE || errno == ECONNRESET)
    return failure(Errc::peer_died, "the other side has closed the connection");
  return os_failure("send");
}

void PacketBuffer::expect(std::size_t packet_bytes) {
  message.msg_flags = kNothingTaken;
  std::atomic_signal_fence(std::memory_order_seq_cst);
  bytes = packet_bytes;
  parts = {{{&header, sizeof header}, {body.data(), body.size()}}};
  message.msg_name = nullptr;
  message.msg_namelen = 0;
  message.msg_iov = parts.data();
  message.msg_iovlen = parts.size();
  message.msg_control = control.data();
  message.msg_controllen = control.size();
}

std::vector<int> PacketBuffer::descriptors() const {
  std::vector<int> fds;
  msghdr copy = message;  // the one that has received it may have had it at another address
  copy.msg_control = const_cast<char*>(control.data());
  for (cmsghdr* c = CMSG_FIRSTHDR(&copy); c != nullptr; c = CMSG_NXTHDR(&copy, c)) {
    if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS) continue;
    const std::size_t count = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (std::size_t i = 0; i < count; ++i) {
      int fd;
      std::memcpy(&fd, CMSG_DATA(c) + i * sizeof(int), sizeof fd);
      fds.push_back(fd);
    }
  }
  return fds;
}

std::size_t next_packet_bytes(int socket) {
  const ssize_t size = recv(socket, nullptr, 0, MSG_PEEK | MSG_TRUNC | MSG_DONTWAIT);
  return size > 0 ? static_cast<std::size_t>(size) : 0;
}

Expected<bool> receive_into(int socket, PacketBuffer& buffer) {
  ssize_t got;
  do got = recvmsg(socket, &buffer.message, MSG_CMSG_CLOEXEC);
  while (got < 0 &&
         (errno == EINTR || errno == ECONNRESET));  // after ECONNRESET, unread packets still follow
  if (got < 0) return os_failure("receive");
  buffer.bytes = static_cast<std::size_t>(got);
  return got != 0;
}

Expected<std::optional<Packet>> packet_in(const PacketBuffer& buffer) {
  Packet packet;
  // Before the check, so that they are closed if it fails.
  for (const int fd : buffer.descriptors()) packet.fds.emplace_back(fd);
  if (auto sound =
          check_header(buffer.header, buffer.bytes, (buffer.message.msg_flags & MSG_TRUNC) != 0);
      !sound)
    return forward_error(sound);
  packet.type_ = buffer.header.type;
  packet.payload_bytes_ = buffer.header.payload_bytes;
  packet.body_.assign(buffer.body.data(), buffer.bytes - sizeof buffer.header);
  packet.lost_fds = (buffer.message.msg_flags & MSG_CTRUNC) != 0;
  return std::optional<Packet>(std::move(packet));
}

Expected<std::optional<Packet>> receive_packet(int socket) {
  // Not on the stack: it is large. Each thread that receives packets has one.
  static thread_local const auto buffer = std::make_unique<PacketBuffer>();
  buffer->expect(0);
  auto taken = receive_into(socket, *buffer);
  if (!taken) return forward_error(taken);
  if (!*taken) return std::optional<Packet>();
  return packet_in(*buffer);
}

NextPacket look_at_next_packet(int socket) {
  char byte;
  iovec part{&byte, sizeof byte};
  msghdr header{};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  if (recvmsg(socket, &header, MSG_PEEK | MSG_DONTWAIT) < 0)
    return errno == EAGAIN || errno == EINTR ? NextPacket::none : NextPacket::plain;
  // There is no room for descriptors in `header`: if there are any, the kernel says so.
  return (header.msg_flags & MSG_CTRUNC) != 0 ? NextPacket::with_descriptors : NextPacket::plain;
}

void refuse_descriptors(int socket) {
  const int none = 0;
  setsockopt(socket, SOL_SOCKET, SO_PASSRIGHTS, &none, sizeof none);
}

Expected<ucred> peer_credentials(int socket) {
  ucred credentials{};
  socklen_t size = sizeof credentials;
  if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &credentials, &size) != 0)
    return os_failure("SO_PEERCRED");
  return credentials;
}

Error error_of(const Refused& refused) { return {refused.error, refused.reason.str()}; }

Expected<UniqueFd> connect_to_daemon(const std::string& socket_path, int timeout_ms) {
  auto address = address_of(socket_path);
  if (!address) return forward_error(address);
  UniqueFd fd{socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0)};
  if (!fd) return os_failure("socket");
  // A stopped daemon accepts no connection. Once its queue is full, connect() without a time limit
  // would block for ever.
  const timeval no_limit{};
  if (timeout_ms >= 0) {
    // The 1 us more keeps a timeout of 0 from becoming {0, 0}, which means "no limit".
    const timeval limit{timeout_ms / 1000, timeout_ms % 1000 * 1000 + 1};
    setsockopt(fd.get(), SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
  }
  if (connect(fd.get(), reinterpret_cast<const sockaddr*>(&*address), sizeof *address) == 0) {
    setsockopt(fd.get(), SOL_SOCKET, SO_SNDTIMEO, &no_limit, sizeof no_limit);
    return fd;
  }
  if (errno == ENOENT || errno == ECONNREFUSED)
    return failure(Errc::not_running,
                   "no daemon listens on " + socket_path +
                       "; start kvhived, or name its socket with --socket or KVHIVE_SOCKET");
  if (errno == EAGAIN) return no_answer(timeout_ms);
  return os_failure("connect to " + socket_path);
}

Expected<std::optional<Packet>> receive_answer(int socket, int timeout_ms) {
  pollfd ready{socket, POLLIN, 0};
  if (poll(&ready, 1, timeout_ms) == 0) return no_answer(timeout_ms);
  return receive_packet(socket);
}

namespace {

Expected<std::vector<UniqueFd>> fds_of_a_hello(int socket) {
  std::vector<UniqueFd> fds;
  if (const auto of_daemon = pidfd_of_peer(socket); of_daemon && *of_daemon) return fds;
  auto own = pidfd_of(getpid());
  if (!own) return forward_error(own);
  fds.push_back(std::move(*own));
  return fds;
}

std::vector<int> numbers_of(const std::vector<UniqueFd>& fds) {
  std::vector<int> numbers;
  for (const UniqueFd& fd : fds) numbers.push_back(fd.get());
  return numbers;
}

}  // namespace

Expected<Packet> exchange_hello(int socket, MessageType type, std::span<const std::byte> payload,
                                int timeout_ms) {
  const auto fds = fds_of_a_hello(socket);
  if (!fds) return forward_error(fds);
  // peer_died is no error yet: a daemon that refuses a connection at once has closed it already,
  // and its Refused packet can still be read.
  if (auto sent = send_bytes(socket, type, payload, numbers_of(*fds), {});
      !sent && sent.error().code != Errc::peer_died)
    return forward_error(sent);
  auto answer = receive_answer(socket, timeout_ms);
  if (!answer) return forward_error(answer);
  if (!*answer)
    return failure(Errc::peer_died, "the daemon closed the connection without an answer");
  Packet packet = std::move(**answer);
  if (packet.lost_fds)
    return failure(
        Errc::os_error,
        "no file descriptor is left for those the daemon sends; close some, or raise the "
        "limit (ulimit -n)");
  if (const auto refused = packet.as<Refused>()) return tl::unexpected(error_of(*refused));
  return packet;
}

PoolFds take_pool_fds(std::uint32_t objects, std::vector<UniqueFd>& fds) {
  PoolFds taken;
  std::size_t next = 0;
  for (std::size_t i = 0; i < kPoolObjects; ++i)
    if ((objects >> i & 1) != 0 && next < fds.size()) taken[i] = std::move(fds[next++]);
  fds.erase(fds.begin(), fds.begin() + static_cast<std::ptrdiff_t>(next));
  return taken;
}

}  // namespace kvhive
