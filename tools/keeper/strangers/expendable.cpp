#include "tools/keeper/strangers/expendable.hpp"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "ipc/pidfd.hpp"
#include "tools/keeper/children/reaper.hpp"

namespace kvhive {
namespace {

/// \param kept  in rising order
void close_all_but(const std::vector<int>& kept) {
  unsigned first = 0;
  for (const int fd : kept) {
    const auto number = static_cast<unsigned>(fd);
    if (first < number) syscall(SYS_close_range, first, number - 1, 0);
    first = number + 1;
  }
  syscall(SYS_close_range, first, ~0u, 0);
}

}  // namespace

Expendables::~Expendables() {
  for (const auto& [pid, process] : processes_) loop_.unwatch(process.pidfd.get());
}

Expected<void> Expendables::start(std::vector<int> kept, const std::function<int()>& work,
                                  std::function<void(int)> on_end) {
  std::erase_if(unwatched_, [](pid_t pid) { return waitpid(pid, nullptr, WNOHANG) != 0; });
  std::sort(kept.begin(), kept.end());
  const pid_t pid = fork();
  if (pid < 0) return os_failure("fork");
  if (pid == 0) {
    prctl(PR_SET_NAME, "kvhived-helper");
    close_all_but(kept);
    _exit(work());
  }
  auto pidfd = pidfd_of(pid);
  if (!pidfd) {  // nobody would tell of its end
    kill(pid, SIGKILL);
    unwatched_.push_back(pid);
    return forward_error(pidfd);
  }
  loop_.watch(pidfd->get(), [this, pid] { this->on_end(pid); });
  processes_.emplace(pid, Process{std::move(*pidfd), std::move(on_end)});
  return {};
}

void Expendables::on_end(pid_t pid) {
  auto ended = processes_.extract(pid);
  loop_.unwatch(ended.mapped().pidfd.get());
  const auto status = end_of_child(pid, IfItRuns::wait);
  if (status) collect_later(pid);
  ended.mapped().on_end(status.value_or(0));
}

}  // namespace kvhive
