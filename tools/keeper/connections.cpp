#include "tools/keeper/connections.hpp"

#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "base/log.hpp"
#include "base/logging/log_limit.hpp"
#include "config/process_limits.hpp"
#include "ipc/pidfd.hpp"

namespace kvhive {
namespace {

/// Descriptors that are kept free for children that have to be started again.
constexpr std::size_t kKeptDescriptors = 16;
/// Descriptors that the keeper may need for a peer's hello: a pidfd, a channel, two doorbell ends.
constexpr std::size_t kDescriptorsOfAHello = 4;

UniqueFd open_reserve() { return UniqueFd(open("/dev/null", O_RDONLY | O_CLOEXEC)); }

UniqueFd accept_next(int listener) {
  return UniqueFd{accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK)};
}

void send_refusal(int socket, const Error& error) {
  // An error here means that the peer has closed the connection; then it needs no refusal.
  (void)send_packet(socket, Refused{error.code, FixedText<512>(error.text)});
}

void refuse_for_want_of_descriptors(UniqueFd socket) {
  if (!socket) return;
  errno = EMFILE;
  send_refusal(socket.get(), os_failure("the daemon cannot take another connection").value());
  // Closing a socket with unread data resets the connection, and the peer could not read the
  // refusal.
  char ignored;
  while (recv(socket.get(), &ignored, 1, MSG_DONTWAIT) > 0) {
  }
}

}  // namespace

Connections::Connections(Tables& tables, EventLoop& loop, Events& events)
    : tables_(tables), loop_(loop), events_(events), reserve_(open_reserve()) {}

void Connections::listen(int listener) {
  loop_.watch(listener, [this, listener] { accept(listener); });
}

void Connections::accept(int listener) {
  UniqueFd socket = accept_next(listener);
  if (!socket && (errno == EMFILE || errno == ENFILE)) {
    reserve_ = UniqueFd();
    refuse_for_want_of_descriptors(accept_next(listener));
    reserve_ = open_reserve();
  }
  if (!socket) return;
  const auto credentials = peer_credentials(socket.get());
  if (!credentials) return send_refusal(socket.get(), credentials.error());
  const int fd = socket.get();
  Peer peer;
  peer.socket = std::move(socket);
  peer.pid = credentials->pid;
  peer.uid = credentials->uid;
  if (!has_room_for(peer)) return refuse_for_want_of_descriptors(std::move(peer.socket));
  tables_.peers.emplace(fd, std::move(peer));
  loop_.watch(fd, [this, fd] { receive(fd); });
}

/// Whether enough descriptors are left for this peer, for all other peers that have not said hello
/// yet, and for starting the keeper's children again.
bool Connections::has_room_for(const Peer& peer) const {
  if (tables_.child_of(peer.pid) != nullptr) return true;
  const auto unknown = std::count_if(tables_.peers.begin(), tables_.peers.end(),
                                     [](const auto& entry) { return !entry.second.is_welcome; });
  return descriptors_left(peer.socket.get()) >=
         kKeptDescriptors + (static_cast<std::size_t>(unknown) + 1) * kDescriptorsOfAHello;
}

void Connections::receive(int socket) {
  Peer& peer = tables_.peers.at(socket);
  auto packet = receive_packet(socket);
  if (!packet && packet.error().code == Errc::os_error) return;  // nothing to read (EAGAIN)
  if (!packet && packet.error().code == Errc::layout_mismatch) return refuse(peer, packet.error());
  static LogLimit broken_packets;
  if (const auto note = packet ? std::nullopt : broken_packets.admit())
    spdlog::warn("pid {}: {}{}", peer.pid, packet.error().text, *note);
  if (!packet || !*packet) return hang_up(peer);
  if ((*packet)->lost_fds)
    return refuse(peer, {Errc::os_error,
                         "the daemon has no file descriptor left for those sent to it; raise its "
                         "limit (ulimit -n), or try again later"});
  events_.on_packet(peer, std::move(**packet));
}

bool Connections::identify(Peer& peer, Packet& hello) {
  if (hello.fds.empty()) {
    refuse(peer, {Errc::bad_format, "a hello must carry the sender's pidfd"});
    return false;
  }
  if (tables_.child_of(peer.pid) != nullptr) return true;
  if (!is_pidfd_of(hello.fds.front(), peer.pid)) {
    refuse(peer, {Errc::bad_format, "a hello must carry a pidfd of its sender"});
    return false;
  }
  peer.pidfd = std::move(hello.fds.front());
  const int socket = peer.socket.get();
  loop_.watch(peer.pidfd.get(), [this, socket] { drop(socket); });
  if (!has_fired(peer.pidfd)) return true;
  drop(socket);
  return false;
}

void Connections::refuse(Peer& peer, const Error& error) {
  static LogLimit refusals;
  if (const auto note = refusals.admit())
    spdlog::warn("refused pid {}: {}{}", peer.pid, error.text, *note);
  send_refusal(peer.socket.get(), error);
  hang_up(peer);
}

void Connections::hang_up(Peer& peer) {
  const bool is_of_the_pool = peer.has_role(Role::engine) || peer.has_role(Role::steward);
  if (!is_of_the_pool) return drop(peer.socket.get());
  loop_.unwatch(peer.socket.get());
  fence(peer);
}

void Connections::fence(const Peer& peer) {
  shutdown(peer.socket.get(), SHUT_RDWR);
  const Child* child = tables_.child_of(peer.pid);
  kill_by_pidfd(child != nullptr ? child->pidfd : peer.pidfd);
}

void Connections::drop(int socket) {
  const auto found = tables_.peers.find(socket);
  if (found == tables_.peers.end()) return;
  const Peer peer = std::move(found->second);
  tables_.peers.erase(found);
  loop_.unwatch(socket);
  if (peer.pidfd) loop_.unwatch(peer.pidfd.get());
  if (peer.is_welcome) events_.on_gone(peer);
}

}  // namespace kvhive
