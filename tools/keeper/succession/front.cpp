#include "tools/keeper/succession/front.hpp"

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "ipc/pidfd.hpp"
#include "tools/keeper/succession/strays.hpp"

namespace kvhive {
namespace {

/// So many keepers may be killed in a row before one has handled an event. The first few are
/// followed at once, the others ever later.
constexpr std::uint32_t kMostFruitless = 12, kFruitlessAtOnce = 4;
/// As in Supervisor::stop_all().
constexpr std::chrono::milliseconds kPatienceWithKilled{500};
/// So many may be killed before the pool is made; each has begun anew.
constexpr std::uint32_t kMostStarts = 3;

sigset_t signals_of_the_front() {
  sigset_t set;
  sigemptyset(&set);
  for (const int signal : {SIGTERM, SIGINT, SIGHUP, SIGCHLD}) sigaddset(&set, signal);
  return set;
}

/// A process that shares this one's table of descriptors. The C library does not know of it: it
/// takes the process's first thread for this process's (its number, above all). A thread that is
/// started there is right in everything, so it does the work.
pid_t start_with_same_descriptors(const std::function<int()>& work) {
  const long pid = syscall(SYS_clone, CLONE_FILES | SIGCHLD, nullptr, nullptr, nullptr, nullptr);
  if (pid != 0) return static_cast<pid_t>(pid);
  try {
    std::thread([&work] { std::exit(work()); }).join();
  } catch (const std::exception&) {  // the system gives no thread
  }
  _exit(1);
}

std::vector<pid_t> children() {
  std::vector<pid_t> pids;
  const std::string self = std::to_string(getpid());
  std::ifstream file("/proc/self/task/" + self + "/children");
  for (pid_t pid = 0; file >> pid;) pids.push_back(pid);
  return pids;
}

}  // namespace

Expected<Front> Front::open(const Options& options) {
  const sigset_t signals = signals_of_the_front();
  sigprocmask(SIG_BLOCK, &signals, nullptr);
  // Whom a killed keeper has started becomes this process's child.
  prctl(PR_SET_CHILD_SUBREAPER, 1);
  const ProcessLimits limits = take_process_limits();
  if (auto enough = check_descriptors(limits, options.engines); !enough)
    return forward_error(enough);
  auto domains = Domains::resolve(options, PeerIdentity::of_this_process());
  if (!domains) return forward_error(domains);
  auto access = resolve_permissions(options.socket_access);
  if (!access) return forward_error(access);
  auto listener = Listener::open(options.socket, *access);
  if (!listener) return forward_error(listener);
  auto ledger = LedgerMemory::create();
  if (!ledger) return forward_error(ledger);
  auto pidfd = pidfd_of(getpid());
  if (!pidfd) return forward_error(pidfd);
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return os_failure("pipe");
  Estate estate{options,
                limits,
                std::move(*domains),
                std::move(*listener),
                std::move(*ledger),
                getpid(),
                std::move(*pidfd),
                UniqueFd(ends[1]),
                UniqueFd(ends[0]),
                {}};
  estate.descriptors = open_descriptors();
  return Front(std::move(estate));
}

Expected<int> Front::run(const std::function<int(Estate&)>& keep) {
  if (auto started = start_keeper(keep); !started) return forward_error(started);
  const sigset_t signals = signals_of_the_front();
  while (true) {
    siginfo_t signal{};
    if (sigwaitinfo(&signals, &signal) < 0) continue;  // EINTR: this process was stopped
    if (signal.si_signo != SIGCHLD) {
      forward(signal);
      continue;
    }
    const auto status = collect();
    if (!status) continue;
    if (WIFEXITED(*status)) {
      end_orphans();
      return WEXITSTATUS(*status);
    }
    auto next = next_keeper(keep, WTERMSIG(*status));
    if (next) continue;
    end_orphans();
    if (next.error().code == Errc::none) return 0;
    return forward_error(next);
  }
}

Expected<void> Front::start_keeper(const std::function<int(Estate&)>& keep) {
  ++estate_.ledger.head().keepers;
  keeper_ = start_with_same_descriptors([&] { return keep(estate_); });
  if (keeper_ < 0) return os_failure("start the keeper");
  return {};
}

/// The keeper was killed. Error: there is none any more; Errc::none = as it was to be.
Expected<void> Front::next_keeper(const std::function<int(Estate&)>& keep, int signal) {
  LedgerHead& head = estate_.ledger.head();
  const bool is_made = head.is_made != 0;
  if (!is_made && head.is_ending != 0) return failure(Errc::none, "");
  const std::uint32_t fruitless = head.fruitless++;
  if (fruitless + 1 >= (is_made ? kMostFruitless : kMostStarts))
    return failure(Errc::peer_died,
                   "the keeper was ended by signal " + std::to_string(signal) + ", and " +
                       std::to_string(fruitless) + " before it, " +
                       (is_made ? "none of which had done anything: giving up"
                                : "before the pool was made: giving up"));
  if (fruitless >= kFruitlessAtOnce)
    std::this_thread::sleep_for(std::chrono::milliseconds(1 << (fruitless - kFruitlessAtOnce + 1)));
  if (!is_made) {  // the next one begins anew; nobody was served yet
    end_orphans();
    for (UniqueFd& stray : find_strays(estate_.descriptors, -1).others) stray = UniqueFd();
  }
  return start_keeper(keep);
}

/// Collects all children that have ended. Returns the keeper's status if it is one of them.
std::optional<int> Front::collect() {
  std::optional<int> of_keeper;
  int status = 0;
  for (pid_t pid; (pid = waitpid(-1, &status, WNOHANG)) > 0;)
    if (pid == keeper_) of_keeper = status;
  return of_keeper;
}

/// Tells the keeper, with the sender's name. If the keeper is killed before it hears it, its
/// successor reads in the ledger that it is to end.
void Front::forward(const siginfo_t& signal) const {
  const bool is_hangup = signal.si_signo == SIGHUP;
  if (!is_hangup) estate_.ledger.head().is_ending = 1;
  siginfo_t forwarded{};
  forwarded.si_signo = is_hangup ? SIGHUP : SIGTERM;
  forwarded.si_code = SI_QUEUE;
  forwarded.si_pid = signal.si_code == SI_KERNEL ? 0 : signal.si_pid;
  forwarded.si_uid = signal.si_uid;
  forwarded.si_value.sival_int = signal.si_signo;
  syscall(SYS_rt_sigqueueinfo, keeper_, forwarded.si_signo, &forwarded);
}

/// Kills and collects the processes that a keeper has left behind. One that the kernel keeps for
/// long ends later. What the keeper had open is closed with this process: some of that is
/// strangers', and closing it here might take as long as they like.
void Front::end_orphans() {
  sigset_t ends;
  sigemptyset(&ends);
  sigaddset(&ends, SIGCHLD);
  const auto end = std::chrono::steady_clock::now() + kPatienceWithKilled;
  while (true) {
    (void)collect();
    const std::vector<pid_t> left = children();
    const auto pause = end - std::chrono::steady_clock::now();
    if (left.empty() || pause <= pause.zero()) return;
    for (const pid_t pid : left) kill(pid, SIGKILL);
    const timespec patience{0, std::chrono::nanoseconds(pause).count()};
    sigtimedwait(&ends, nullptr, &patience);
  }
}

}  // namespace kvhive
