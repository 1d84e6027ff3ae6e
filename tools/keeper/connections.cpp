#include "tools/keeper/connections.hpp"

#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <utility>
#include <vector>

#include "base/log.hpp"
#include "base/logging/log_limit.hpp"
#include "config/machine/process_limits.hpp"
#include "ipc/pidfd.hpp"

namespace kvhive {
namespace {

/// Descriptors that are kept free for children that have to be started again, and for those that
/// are sent in a welcome and then closed.
constexpr std::size_t kKeptDescriptors = 16 + 3;
/// Descriptors that the keeper needs for a peer that has said hello: a pidfd, a channel's two files
/// and a pipe, two ends of bells, and, for a moment, what only the client needs of it; later,
/// socket and pidfd of the process that pins its pages.
constexpr std::size_t kDescriptorsOfAHello = 8;
/// Descriptors in a client's welcome.
constexpr std::size_t kDescriptorsOfAnAnswer = 4;

UniqueFd open_reserve() { return UniqueFd(open("/dev/null", O_RDONLY | O_CLOEXEC)); }

UniqueFd accept_next(int listener) {
  return UniqueFd{accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK)};
}

void send_refusal(int socket, const Error& error) {
  // An error here means that the peer has closed the connection; then it needs no refusal.
  (void)send_packet(socket, Refused{error.code, FixedText<512>(error.text)});
}

Error want_of_descriptors() {
  errno = EMFILE;
  return os_failure("the daemon cannot take another connection").value();
}

bool is_silent(const Peer& peer) { return !peer.has_spoken && peer.is_stranger(); }

}  // namespace

ConnectionLimits limits_for(std::uint64_t descriptors) {
  ConnectionLimits limits;
  const std::uint64_t connections = descriptors / (kDescriptorsOfAHello + 1);
  limits.of_user = std::clamp<std::uint64_t>(connections / 4, 6, 4096);
  limits.silent_of_all = std::clamp<std::uint64_t>(connections / 16, 8, 64);
  limits.kept_for_owner = std::min<std::uint64_t>(descriptors / 8, 64);
  // Half of what the user may have in unread packets is left to engines.
  limits.unread.of_all = descriptors / 2 / kDescriptorsOfAnAnswer;
  limits.unread.of_user = std::clamp<std::uint64_t>(limits.unread.of_all / 8, 4, 64);
  return limits;
}

Connections::Connections(Tables& tables, EventLoop& loop, Events& events,
                         const ConnectionLimits& limits)
    : tables_(tables),
      loop_(loop),
      events_(events),
      limits_(limits),
      burial_(loop),
      unread_(loop, limits.unread, [this](UniqueFd socket) { close_strangers(std::move(socket)); }),
      reserve_(open_reserve()) {}

Connections::~Connections() {
  for (auto& [socket, peer] : tables_.peers)
    if (peer.is_stranger()) (void)peer.socket.release();
}

void Connections::listen(int listener) {
  loop_.watch(listener, [this, listener] { accept(listener); });
}

void Connections::accept(int listener) {
  UniqueFd socket = accept_next(listener);
  if (!socket && (errno == EMFILE || errno == ENFILE)) {
    reserve_ = UniqueFd();
    turn_away(accept_next(listener), want_of_descriptors());
    reserve_ = open_reserve();
  }
  if (!socket) return;
  const auto credentials = peer_credentials(socket.get());
  if (!credentials) return send_refusal(socket.get(), credentials.error());
  take(std::move(socket), *credentials);
}

void Connections::take(UniqueFd socket, const ucred& credentials) {
  const int fd = socket.get();
  Peer peer;
  peer.socket = std::move(socket);
  peer.pid = credentials.pid;
  peer.uid = credentials.uid;
  peer.number = tables_.next_connection++;
  if (peer.is_stranger()) make_room_for_silent(peer);
  if (!has_room_for(peer)) return turn_away(std::move(peer.socket), want_of_descriptors());
  if (const auto granted = check_user(peer); !granted)
    return turn_away(std::move(peer.socket), granted.error());
  if (tables_.child_of(peer) == nullptr) expect_hello(peer);
  tables_.peers.emplace(fd, std::move(peer));
  loop_.watch(fd, [this, fd] { receive(fd); });
}

void Connections::adopt(UniqueFd socket) {
  if (const auto credentials = peer_credentials(socket.get()))
    take(std::move(socket), *credentials);
}

void Connections::resume(Peer& peer) {
  const int socket = peer.socket.get();
  loop_.watch(socket, [this, socket] { receive(socket); });
  if (peer.pidfd) loop_.watch(peer.pidfd.get(), [this, socket] { drop(socket); });
  if (peer.is_stranger()) unread_.sent(peer.uid, peer.socket);  // perhaps it has read all
}

/// Whether enough descriptors are left for this peer, for all other peers that have not said hello
/// yet, and for starting the keeper's children again.
bool Connections::has_room_for(const Peer& peer) const {
  if (tables_.child_of(peer) != nullptr) return true;
  const auto unknown = std::count_if(
      tables_.peers.begin(), tables_.peers.end(),
      [](const auto& entry) { return !entry.second.is_welcome || entry.second.awaits_channel; });
  const std::size_t kept = kKeptDescriptors + (peer.is_stranger() ? limits_.kept_for_owner : 0);
  return descriptors_left(peer.socket.get()) >=
         kept + (static_cast<std::size_t>(unknown) + 1) * kDescriptorsOfAHello;
}

/// Whether the peer's user may have one more connection.
Expected<void> Connections::check_user(const Peer& peer) const {
  if (!peer.is_stranger()) return {};
  const auto open = std::count_if(tables_.peers.begin(), tables_.peers.end(),
                                  [&](const auto& entry) { return entry.second.uid == peer.uid; });
  const std::size_t its = static_cast<std::size_t>(open) + unread_.kept_of(peer.uid);
  if (its < limits_.of_user) return {};
  return failure(Errc::too_many_processes,
                 "user " + std::to_string(peer.uid) + " has " + std::to_string(its) +
                     " connections, the most that the daemon grants a user; close some, or raise "
                     "the daemon's limit of descriptors (ulimit -n)");
}

/// Makes room for one more connection without a hello: drops the oldest silent ones of the peer's
/// user down to silent_of_user - 1, then the oldest of all strangers down to silent_of_all - 1.
void Connections::make_room_for_silent(const Peer& peer) {
  const auto make_room = [this](std::size_t most, auto&& counts) {
    while (true) {
      const Peer* oldest = nullptr;
      std::size_t count = 0;
      for (const auto& [socket, other] : tables_.peers) {
        if (!is_silent(other) || !counts(other)) continue;
        ++count;
        if (oldest == nullptr || other.number < oldest->number) oldest = &other;
      }
      if (count < most) return;
      drop(oldest->socket.get());
    }
  };
  make_room(limits_.silent_of_user, [&](const Peer& other) { return other.uid == peer.uid; });
  make_room(limits_.silent_of_all, [](const Peer&) { return true; });
}

/// Sees to it that the connection is closed if it is still silent when the time for a hello has
/// passed. That costs the peer its connection and nobody anything else. There is one timer for all:
/// peers that come and go must not leave a timer each.
void Connections::expect_hello(Peer& peer) {
  peer.since = std::chrono::steady_clock::now();
  if (!std::exchange(expects_hellos_, true))
    loop_.after(limits_.for_hello, [this] { close_late(); });
}

void Connections::close_late() {
  const auto now = std::chrono::steady_clock::now();
  std::vector<int> late;
  auto next = std::chrono::steady_clock::time_point::max();
  for (const auto& [socket, peer] : tables_.peers) {
    if (peer.has_spoken) continue;
    const auto end = peer.since + limits_.for_hello;
    if (end <= now)
      late.push_back(socket);
    else
      next = std::min(next, end);
  }
  for (const int socket : late)
    if (const auto found = tables_.peers.find(socket); found != tables_.peers.end())
      refuse(found->second, {Errc::not_running, "nothing was said for " +
                                                    std::to_string(limits_.for_hello.count()) +
                                                    " s after connecting; say hello at once"});
  expects_hellos_ = next != std::chrono::steady_clock::time_point::max();
  if (expects_hellos_)
    loop_.after(std::chrono::ceil<std::chrono::milliseconds>(next - now), [this] { close_late(); });
}

void Connections::receive(int socket) {
  Peer& peer = tables_.peers.at(socket);
  if (peer.is_stranger()) {
    const NextPacket next = look_at_next_packet(socket);
    if (next == NextPacket::none) return;
    if (next == NextPacket::with_descriptors)
      return refuse(peer, {Errc::bad_format, "this daemon takes no file descriptors"});
  }
  peer.has_spoken = true;
  auto packet = next_packet(socket);
  const bool is_os_error = !packet && packet.error().code == Errc::os_error;
  if (is_os_error && look_at_next_packet(socket) == NextPacket::none) return;  // EAGAIN
  handle(peer, std::move(packet));
}

Expected<std::optional<Packet>> Connections::next_packet(int socket) {
  if (inbox_ == nullptr) return receive_packet(socket);
  inbox_->packet.expect(next_packet_bytes(socket));
  inbox_->socket = socket;
  inbox_->tries = 1;
  inbox_->handled_by = Inbox::kNever;
  auto taken = kvhive::receive_into(socket, inbox_->packet);
  if (!taken) return forward_error(taken);
  if (!*taken) return std::optional<Packet>();
  return packet_in_inbox();
}

/// The packet gets copies of its descriptors. The inbox names the others until the packet is done.
Expected<std::optional<Packet>> Connections::packet_in_inbox() {
  auto packet = packet_in(inbox_->packet);
  if (!packet || (*packet)->fds.empty()) return packet;
  const auto named = std::make_shared<std::vector<UniqueFd>>(std::move((*packet)->fds));
  (*packet)->fds.clear();
  for (const UniqueFd& fd : *named)
    (*packet)->fds.emplace_back(fcntl(fd.get(), F_DUPFD_CLOEXEC, 0));
  events_.after_commit([named] {});
  return packet;
}

/// Called by a successor before it handles anything else.
void Connections::finish_inbox() {
  constexpr std::uint32_t kMostTries = 3;
  const auto found = tables_.peers.find(inbox_->socket);
  if (found == tables_.peers.end()) return;
  Peer& peer = found->second;
  peer.has_spoken = true;
  const std::uint32_t tries = ++inbox_->tries;
  auto packet = packet_in_inbox();
  if (tries <= kMostTries) return handle(peer, std::move(packet));
  spdlog::error("{} keepers were killed as they handled a packet of pid {}: it is hung up on",
                tries - 1, peer.pid);
  hang_up(peer);
}

void Connections::handle(Peer& peer, Expected<std::optional<Packet>> packet) {
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
  if (tables_.child_of(peer) != nullptr) return true;
  auto pidfd = pidfd_for(peer, hello);
  if (!pidfd) {
    refuse(peer, pidfd.error());
    return false;
  }
  if (!*pidfd) return true;  // an invisible client: its socket tells when it ends
  peer.pidfd = std::move(*pidfd);
  const int socket = peer.socket.get();
  loop_.watch(peer.pidfd.get(), [this, socket] { drop(socket); });
  if (!has_fired(peer.pidfd)) return true;
  drop(socket);
  return false;
}

/// A pidfd of the peer. The kernel gives it (Linux 6.5), or the hello of a process of the daemon's
/// own user contains it, or it is opened by the peer's pid. In the last case the peer may have
/// ended and another process may have got its pid. Then the pidfd is useless, but the keeper
/// still notices the peer's end: its connection is closed.
Expected<UniqueFd> Connections::pidfd_for(const Peer& peer, Packet& hello) const {
  auto told = pidfd_of_peer(peer.socket.get());
  if (!told) return failure(Errc::peer_died, "the process has ended");
  if (*told) return told;
  if (!peer.is_stranger() && !hello.fds.empty() && is_pidfd_of(hello.fds.front(), peer.pid))
    return std::move(hello.fds.front());
  if (peer.pid != 0) return pidfd_of(peer.pid);
  if (hello.is(MessageType::client_hello)) return UniqueFd();
  return failure(Errc::bad_format, "a hello must carry a pidfd of its sender");
}

Expected<void> Connections::may_answer(const Peer& peer) {
  return peer.is_stranger() ? unread_.check(peer.uid) : Expected<void>();
}

void Connections::answered(const Peer& peer) {
  if (peer.is_stranger()) unread_.sent(peer.uid, peer.socket);
}

void Connections::refuse(Peer& peer, const Error& error) {
  static LogLimit own_refusals, strangers_refusals;  // strangers must not hide what the owner needs
  LogLimit& refusals = peer.is_stranger() ? strangers_refusals : own_refusals;
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
  const Child* child = tables_.child_of(peer);
  kill_by_pidfd(child != nullptr ? child->pidfd : peer.pidfd);
}

void Connections::drop(int socket) {
  const auto found = tables_.peers.find(socket);
  if (found == tables_.peers.end()) return;
  Peer peer = std::move(found->second);
  tables_.peers.erase(found);
  if (peer.is_welcome) tables_.touch(peer);
  loop_.unwatch(socket);
  if (peer.pidfd) loop_.unwatch(peer.pidfd.get());
  if (peer.is_welcome) events_.on_gone(peer);
  const bool is_strangers = peer.is_stranger();
  const bool is_kept = is_strangers && unread_.keep(peer.socket);
  // A row of the ledger names the descriptors until this event is written down.
  events_.after_commit(
      [this, is_kept, is_strangers, gone = std::make_shared<Peer>(std::move(peer))] {
        if (is_strangers && !is_kept) close_strangers(std::move(gone->socket));
      });
}

/// Refuses a connection of which nothing was read.
void Connections::turn_away(UniqueFd socket, const Error& error) {
  if (!socket) return;
  send_refusal(socket.get(), error);
  close_strangers(std::move(socket));
}

/// Closes a stranger's connection. What it has sent is read, because closing a socket with unread
/// packets resets the connection, and the peer could not read why it was refused.
void Connections::close_strangers(UniqueFd socket) {
  shutdown(socket.get(), SHUT_RD);  // from here on nothing more comes
  while (look_at_next_packet(socket.get()) == NextPacket::plain) {
    char ignored;
    if (recv(socket.get(), &ignored, 1, MSG_DONTWAIT) <= 0) return;
  }
  burial_.bury(std::move(socket));
}

}  // namespace kvhive
