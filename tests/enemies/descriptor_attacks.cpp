// Attacks with descriptors: files that take for ever to close, that grow, that hold themselves.

#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>

#include "ipc/protocol.hpp"
#include "tests/enemies/attacks.hpp"
#include "tests/support/lingering_socket.hpp"
#include "tests/support/send_descriptors.hpp"

namespace kvhive::testing {
namespace {

/// The other end of the last lingering socket. While it is open, the last close takes its hour.
UniqueFd& other_end() {
  static UniqueFd listener;
  return listener;
}

UniqueFd lingering_socket(Enemy&) {
  LingeringSocket made(3600);
  other_end() = std::move(made.listener);
  return std::move(made.socket);
}

UniqueFd epoll_of_itself(Enemy& enemy) {
  UniqueFd outer(epoll_create1(EPOLL_CLOEXEC)), inner(epoll_create1(EPOLL_CLOEXEC));
  epoll_event event{};
  event.events = EPOLLIN;
  epoll_ctl(outer.get(), EPOLL_CTL_ADD, inner.get(), &event);
  enemy.hold(std::move(inner));
  return outer;
}

UniqueFd memory(Enemy& enemy) {
  UniqueFd fd(memfd_create("hostile", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  (void)!ftruncate(fd.get(), enemy.chance(2) ? off_t{1} << 40 : off_t{1} << 20);  // sparse
  if (enemy.chance(2)) (void)!write(fd.get(), "grows", 5);
  if (enemy.chance(2)) fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_SEAL);
  return fd;
}

UniqueFd pidfd_of_another(Enemy& enemy) {
  const pid_t pid = enemy.chance(2) ? 1 : getppid();
  return UniqueFd(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
}

UniqueFd full_pipe(Enemy& enemy) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC | O_NONBLOCK) != 0) return {};
  UniqueFd reader(ends[0]), writer(ends[1]);
  char page[4096]{};
  while (write(writer.get(), page, sizeof page) > 0) {
  }
  fcntl(writer.get(), F_SETFL, 0);  // whoever writes now waits
  enemy.hold(std::move(reader));
  return writer;
}

UniqueFd full_eventfd(Enemy&) {
  UniqueFd fd(eventfd(0, EFD_CLOEXEC));
  const std::uint64_t most = ~0ull - 1;
  (void)!write(fd.get(), &most, sizeof most);
  return fd;
}

UniqueFd socket_that_holds_itself(Enemy&) {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) return {};
  const UniqueFd one(ends[0]);
  UniqueFd other(ends[1]);
  for (int i = 0; i < 3; ++i) (void)send_packet(one.get(), StatusRequest{}, {other.get()});
  return other;
}

UniqueFd fuse(Enemy&) { return UniqueFd(open("/dev/fuse", O_RDWR | O_CLOEXEC)); }

UniqueFd terminal(Enemy&) { return UniqueFd(open("/dev/ptmx", O_RDWR | O_NOCTTY | O_CLOEXEC)); }

UniqueFd root_directory(Enemy&) { return UniqueFd(open("/", O_PATH | O_CLOEXEC)); }

using Maker = UniqueFd (*)(Enemy&);
constexpr Maker kMakers[] = {lingering_socket,
                             epoll_of_itself,
                             memory,
                             pidfd_of_another,
                             full_pipe,
                             full_eventfd,
                             fuse,
                             terminal,
                             root_directory,
                             socket_that_holds_itself};

/// One kind, or some of several kinds.
std::vector<UniqueFd> hostile_descriptors(Enemy& enemy) {
  std::vector<UniqueFd> all;
  for (std::uint64_t i = enemy.below(3) + 1; i > 0; --i)
    if (UniqueFd fd = enemy.one_of(kMakers)(enemy)) all.push_back(std::move(fd));
  return all;
}

/// Sends them with a message, each so many times, and closes the own ones.
template <class Message>
void send_and_close(int socket, const Message& message, std::vector<UniqueFd> fds,
                    std::uint64_t copies = 1) {
  std::vector<int> numbers;
  for (std::uint64_t i = 0; i < copies; ++i)
    for (const UniqueFd& fd : fds) numbers.push_back(fd.get());
  PacketHeader header;
  header.type = Message::kType;
  header.payload_bytes = kPayloadBytes<Message>;
  std::string packet(reinterpret_cast<const char*>(&header), sizeof header);
  packet.append(reinterpret_cast<const char*>(&message), kPayloadBytes<Message>);
  if (!send_descriptors(socket, packet, numbers))
    other_end() = UniqueFd();  // else this process would linger itself
}

void send_in_hello(Enemy& enemy) {
  UniqueFd socket = enemy.connect();
  send_and_close(socket.get(), ClientHello{kLeastChannelBytes}, hostile_descriptors(enemy));
  if (enemy.chance(2)) enemy.hold(std::move(socket));
}

void send_after_hello(Enemy& enemy) {
  SeizedChannel* channel = enemy.some_channel();
  if (channel == nullptr) return;
  send_and_close(channel->socket.get(), ClientHello{kLeastChannelBytes},
                 hostile_descriptors(enemy));
}

void send_many(Enemy& enemy) {
  const UniqueFd socket = enemy.connect();
  auto fds = hostile_descriptors(enemy);
  const std::uint64_t copies = 250 / std::max<std::size_t>(fds.size(), 1);
  send_and_close(socket.get(), StatusRequest{}, std::move(fds), copies);
}

void send_over_the_bell(Enemy& enemy) {
  SeizedChannel* channel = enemy.some_channel();
  if (channel == nullptr) return;
  send_and_close(channel->client_bell.get(), StatusRequest{}, hostile_descriptors(enemy));
  send_and_close(channel->engine_bell, StatusRequest{}, hostile_descriptors(enemy));
}

// A process of the daemon's own user may send descriptors: it can stop the daemon anyway.
constexpr Attack kAttacks[] = {
    {"hostile descriptors in a hello", "S1", send_in_hello, true},
    {"hostile descriptors after a hello", "S1", send_after_hello, true},
    {"hundreds of descriptors", "S1", send_many, true},
    {"hostile descriptors over a bell", "S1", send_over_the_bell},
};

}  // namespace

std::span<const Attack> descriptor_attacks() { return kAttacks; }

}  // namespace kvhive::testing
