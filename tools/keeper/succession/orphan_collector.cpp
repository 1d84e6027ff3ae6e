#include "tools/keeper/succession/orphan_collector.hpp"

#include <sys/prctl.h>
#include <sys/wait.h>

#include <mutex>
#include <semaphore>
#include <system_error>
#include <thread>

#include "tools/keeper/children/reaper.hpp"

namespace kvhive {

/// A keeper is a copy of this process, with the calling thread alone. So the collector's thread
/// takes no lock of the C library (it allocates and prints nothing): a copy would have it locked
/// for ever.
struct OrphanCollector::State {
  explicit State(OrphanEnds& of_all) : ends(&of_all) {}

  /// One that has ended and is not spared; 0 = there is none. Its end is written down.
  pid_t next_ended();
  void collect();
  void work();

  OrphanEnds* ends;
  std::mutex choosing;  ///< never held while a process is collected
  pid_t spared = 0;
  std::counting_semaphore<> is_woken{0};
  std::binary_semaphore is_running{0};
  bool has_thread = false;
};

pid_t OrphanCollector::State::next_ended() {
  const std::lock_guard lock(choosing);
  siginfo_t end{};
  if (ends == nullptr) return 0;
  if (waitid(P_ALL, 0, &end, WEXITED | WNOHANG | WNOWAIT) != 0 || end.si_pid == spared) return 0;
  if (end.si_pid != 0) ends->write(end.si_pid, wait_status_of(end));
  return end.si_pid;
}

void OrphanCollector::State::collect() {
  while (const pid_t ended = next_ended()) waitpid(ended, nullptr, WNOHANG);
}

void OrphanCollector::State::work() {
  prctl(PR_SET_NAME, kReaperName);
  is_running.release();
  while (true) {
    is_woken.acquire();
    collect();
  }
}

OrphanCollector::OrphanCollector(OrphanEnds& ends) : state_(*new State(ends)) {
  try {
    std::thread([state = &state_] { state->work(); }).detach();
    state_.is_running.acquire();
    state_.has_thread = true;
  } catch (const std::system_error&) {
  }
}

OrphanCollector::~OrphanCollector() {
  const std::lock_guard lock(state_.choosing);
  state_.ends = nullptr;
}

pid_t OrphanCollector::start_spared(const std::function<pid_t()>& start) {
  const std::lock_guard lock(state_.choosing);
  return state_.spared = start();
}

void OrphanCollector::wake() {
  if (state_.has_thread) return state_.is_woken.release();
  state_.collect();
}

void OrphanCollector::collect_all() {
  {
    const std::lock_guard lock(state_.choosing);
    state_.spared = 0;
  }
  state_.collect();
}

}  // namespace kvhive
