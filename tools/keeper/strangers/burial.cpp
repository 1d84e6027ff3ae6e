#include "tools/keeper/strangers/burial.hpp"

#include <fcntl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>

#include "base/log.hpp"
#include "ipc/pidfd.hpp"

namespace kvhive {
namespace {

/// So many processes hold connections at a time. If all of them hang, further connections stay open
/// in the keeper until one of them ends.
constexpr std::size_t kMostProcesses = 8;

/// Closes all descriptors but these.
void close_all_but(std::vector<int> kept) {
  std::sort(kept.begin(), kept.end());
  unsigned first = 0;
  for (const int fd : kept) {
    const auto number = static_cast<unsigned>(fd);
    if (first < number) syscall(SYS_close_range, first, number - 1, 0);
    first = number + 1;
  }
  syscall(SYS_close_range, first, ~0u, 0);
}

/// In the child: waits until the keeper has closed its own descriptors, so that these are the last,
/// and ends.
[[noreturn]] void hold_until_closed(const std::vector<UniqueFd>& sockets, int until_closed) {
  std::vector<int> kept = {until_closed};
  for (const UniqueFd& socket : sockets) kept.push_back(socket.get());
  close_all_but(std::move(kept));
  char nothing;
  [[maybe_unused]] const ssize_t got = read(until_closed, &nothing, 1);
  _exit(0);
}

}  // namespace

Burial::~Burial() {
  for (UniqueFd& socket : waiting_) (void)socket.release();  // see ~Connections()
  for (const auto& [pid, pidfd] : processes_) loop_.unwatch(pidfd.get());
}

void Burial::bury(UniqueFd socket) {
  waiting_.push_back(std::move(socket));
  start();
}

void Burial::start() {
  if (waiting_.empty() || processes_.size() >= kMostProcesses) return;
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return;  // the connections wait for the next call
  UniqueFd until_closed(ends[0]), keepers_end(ends[1]);
  const pid_t pid = fork();
  if (pid == 0) hold_until_closed(waiting_, until_closed.get());
  if (pid < 0) return;
  waiting_.clear();
  keepers_end = UniqueFd();
  auto pidfd = pidfd_of(pid);
  if (!pidfd) {
    spdlog::error("{}", pidfd.error().text);
    return;
  }
  loop_.watch(pidfd->get(), [this, pid] { on_end(pid); });
  processes_.emplace(pid, std::move(*pidfd));
}

void Burial::on_end(pid_t pid) {
  const auto found = processes_.find(pid);
  loop_.unwatch(found->second.get());
  processes_.erase(found);
  waitpid(pid, nullptr, 0);
  start();
}

}  // namespace kvhive
