#include "tools/keeper/strangers/burial.hpp"

#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <utility>

#include "base/log.hpp"

namespace kvhive {
namespace {

/// So many processes hold connections at a time. If all of them hang, further connections stay open
/// in the keeper until one of them ends.
constexpr std::size_t kMostProcesses = 8;

/// After so many seconds a process ends that waits for a file to be closed.
constexpr unsigned kPatience = 2;

/// Receives the packets, so that their descriptors are this process's and end with it.
void take_all_packets(int socket) {
  constexpr std::size_t kMostInAPacket = 253;  // SCM_MAX_FD
  alignas(cmsghdr) std::array<char, CMSG_SPACE(kMostInAPacket * sizeof(int))> control;
  char ignored;
  iovec part{&ignored, sizeof ignored};
  ssize_t got;
  do {
    msghdr packet{};
    packet.msg_iov = &part;
    packet.msg_iovlen = 1;
    packet.msg_control = control.data();
    packet.msg_controllen = control.size();
    got = recvmsg(socket, &packet, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  } while (got > 0);
}

}  // namespace

Burial::~Burial() {
  for (UniqueFd& socket : waiting_) (void)socket.release();  // see ~Connections()
}

void Burial::bury(UniqueFd socket) {
  waiting_.push_back(std::move(socket));
  start();
}

/// The process waits until the keeper has closed its own descriptors, so that its own are the last.
void Burial::start() {
  if (waiting_.empty() || processes_.count() >= kMostProcesses) return;
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return;  // the connections wait for the next call
  const UniqueFd until_closed(ends[0]), keepers_end(ends[1]);
  std::vector<int> kept = {until_closed.get()};
  for (const UniqueFd& socket : waiting_) kept.push_back(socket.get());
  const auto wait = [&] {
    alarm(kPatience);
    for (const UniqueFd& socket : waiting_) take_all_packets(socket.get());
    alarm(0);
    char nothing;
    return read(until_closed.get(), &nothing, 1) == 0 ? 0 : 1;
  };
  if (auto started = processes_.start(std::move(kept), wait, [this](int) { start(); }); !started)
    return spdlog::error("{}", started.error().text);
  waiting_.clear();
}

}  // namespace kvhive
