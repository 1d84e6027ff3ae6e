#include "tools/keeper/children/reaper.hpp"

#include <sys/prctl.h>
#include <sys/wait.h>

#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

namespace kvhive {
namespace {

/// So long after its end hardly anybody but who collects it drops a process's entries. A keeper
/// that is killed while this thread is in the kernel has no successor before the thread comes back.
constexpr std::chrono::seconds kCalm{1};

/// Those that have ended, and the thread that collects them.
class Reaper {
 public:
  void add(pid_t child) {
    const std::lock_guard lock(mutex_);
    if (!has_thread_) has_thread_ = start();
    if (!has_thread_) {
      waitpid(child, nullptr, 0);
      return;
    }
    ended_.push_back(child);
    has_some_.notify_one();
  }

 private:
  bool start() {
    try {
      std::thread([this] { collect(); }).detach();
      return true;
    } catch (const std::system_error&) {
      return false;
    }
  }

  void collect() {
    prctl(PR_SET_NAME, kReaperName);
    std::unique_lock lock(mutex_);
    while (true) {
      has_some_.wait(lock, [this] { return !ended_.empty(); });
      lock.unlock();
      std::this_thread::sleep_for(kCalm);
      lock.lock();
      const std::vector<pid_t> ended = std::exchange(ended_, {});
      lock.unlock();
      for (const pid_t child : ended) waitpid(child, nullptr, WNOHANG);
      lock.lock();
    }
  }

  std::mutex mutex_;
  std::condition_variable has_some_;
  std::vector<pid_t> ended_;
  bool has_thread_ = false;
};

}  // namespace

int wait_status_of(const siginfo_t& end) {
  return end.si_code == CLD_EXITED ? end.si_status << 8 : end.si_status;
}

tl::expected<int, NoEnd> end_of_child(pid_t child, IfItRuns if_it_runs) {
  siginfo_t end{};
  const int flags = if_it_runs == IfItRuns::wait ? 0 : WNOHANG;
  while (waitid(P_PID, static_cast<id_t>(child), &end, WEXITED | WNOWAIT | flags) != 0)
    if (errno != EINTR) return tl::unexpected(NoEnd::no_child);
  if (end.si_pid == 0) return tl::unexpected(NoEnd::it_runs);
  return wait_status_of(end);
}

void collect_later(pid_t child) {
  static Reaper& reaper = *new Reaper;  // its thread may be in the kernel when the process ends
  reaper.add(child);
}

}  // namespace kvhive
