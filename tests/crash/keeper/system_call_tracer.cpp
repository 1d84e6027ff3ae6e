#include "tests/crash/keeper/system_call_tracer.hpp"

#include <poll.h>
#include <signal.h>
#include <sys/ptrace.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <utility>
#include <vector>

#include "base/check.hpp"

namespace kvhive::testing {
namespace {

constexpr int kSystemCallStop = SIGTRAP | 0x80;  // PTRACE_O_TRACESYSGOOD
constexpr long kOptionsOfAll = PTRACE_O_TRACESYSGOOD | PTRACE_O_TRACEEXEC | PTRACE_O_EXITKILL;
// fork() is not followed: the keeper's children are not traced.
constexpr long kOptions = kOptionsOfAll | PTRACE_O_TRACECLONE;
/// Of the front, whose first child is the keeper. Its other thread is not traced: one of its calls
/// could be reported after the keeper was made and before the keeper is known here.
constexpr long kOptionsOfAFront = kOptionsOfAll | PTRACE_O_TRACEFORK;

sigset_t only_sigchld() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGCHLD);
  return set;
}

std::filesystem::path tasks_of(pid_t pid) { return "/proc/" + std::to_string(pid) + "/task"; }

std::set<pid_t> threads_of(pid_t pid) {
  std::set<pid_t> threads;
  std::error_code gone;
  for (std::filesystem::directory_iterator at(tasks_of(pid), gone), end; !gone && at != end;
       at.increment(gone))
    threads.insert(std::stoi(at->path().filename()));
  return threads;
}

/// False if the thread has ended meanwhile.
bool seize(pid_t thread, long options) {
  if (ptrace(PTRACE_SEIZE, thread, nullptr, options) == 0) return true;
  KV_CHECK(errno == ESRCH, thread, errno);
  return false;
}

bool is_readable(const UniqueFd& fd) {
  pollfd polled{fd.get(), POLLIN, 0};
  return poll(&polled, 1, 0) > 0;
}

}  // namespace

SystemCallTracer::SystemCallTracer(pid_t pid, FromItsExec)
    : SystemCallTracer(pid, kOptionsOfAFront) {}

SystemCallTracer::SystemCallTracer(pid_t pid, long options) : pid_(pid), options_(options) {
  const sigset_t set = only_sigchld();
  sigset_t before;
  KV_CHECK(sigprocmask(SIG_BLOCK, &set, &before) == 0);
  was_blocked_ = sigismember(&before, SIGCHLD) == 1;
  child_events_ = UniqueFd(signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
  KV_CHECK(child_events_, errno);
  while (seize_new_threads()) continue;
  KV_CHECK(!threads_.empty(), pid);
}

SystemCallTracer::SystemCallTracer(pid_t pid) : SystemCallTracer(pid, kOptions) {
  for (const pid_t thread : threads_) {
    ptrace(PTRACE_INTERRUPT, thread, nullptr, nullptr);
    int status = 0;
    KV_CHECK(waitpid(thread, &status, __WALL) == thread && WIFSTOPPED(status), thread, status);
    standing_.insert(thread);
  }
}

SystemCallTracer::~SystemCallTracer() {
  detach();
  const sigset_t set = only_sigchld();
  if (!was_blocked_) sigprocmask(SIG_UNBLOCK, &set, nullptr);
}

bool SystemCallTracer::seize_new_threads() {
  bool found = false;
  for (const pid_t thread : threads_of(pid_))
    if (threads_.count(thread) == 0 && seize(thread, options_))
      found = threads_.insert(thread).second;
  return found;
}

void SystemCallTracer::resume(pid_t thread, int signal) {
  // Fails if the thread was killed meanwhile; its end is reported next.
  ptrace(PTRACE_SYSCALL, thread, nullptr, static_cast<long>(signal));
}

std::optional<SystemCallTracer::Boundary> SystemCallTracer::next(const UniqueFd& until) {
  for (const pid_t thread : std::exchange(standing_, {})) resume(thread, 0);
  while (!threads_.empty()) {
    if (const auto boundary = take_event()) return boundary;
    if (threads_.empty()) break;
    const bool is_over = is_readable(until);
    if (is_over && is_asleep()) break;
    if (is_over) continue;  // until all threads sleep
    pollfd polled[] = {{child_events_.get(), POLLIN, 0}, {until.get(), POLLIN, 0}};
    poll(polled, std::size(polled), -1);
    signalfd_siginfo ignored{};
    while (read(child_events_.get(), &ignored, sizeof ignored) > 0) continue;
  }
  return std::nullopt;
}

void SystemCallTracer::finish(const Boundary& boundary) {
  KV_CHECK(standing_.count(boundary.thread) == 1, boundary.thread);
  resume(boundary.thread, 0);
  int status = 0;
  KV_CHECK(waitpid(boundary.thread, &status, __WALL) == boundary.thread, errno);
  KV_CHECK(WIFSTOPPED(status) && WSTOPSIG(status) == kSystemCallStop, status);
}

/// Handles all events that wait, up to the first boundary.
std::optional<SystemCallTracer::Boundary> SystemCallTracer::take_event() {
  const std::vector<pid_t> threads(threads_.begin(), threads_.end());
  for (const pid_t thread : threads) {
    int status = 0;
    const pid_t got = waitpid(thread, &status, WNOHANG | __WALL);
    if (got < 0) on_end(thread, 0);
    if (got <= 0) continue;
    last_states_.clear();
    if (const auto boundary = on_event(thread, status)) return boundary;
  }
  return std::nullopt;
}

std::optional<SystemCallTracer::Boundary> SystemCallTracer::on_event(pid_t thread, int status) {
  if (!WIFSTOPPED(status)) {
    on_end(thread, status);
    return std::nullopt;
  }
  const int event = status >> 16;
  if (WSTOPSIG(status) == kSystemCallStop) {
    __ptrace_syscall_info info{};
    const long got = ptrace(PTRACE_GET_SYSCALL_INFO, thread, sizeof info, &info);
    if (got > 0 && info.op == PTRACE_SYSCALL_INFO_ENTRY) {
      standing_.insert(thread);
      return Boundary{thread, info.entry.nr};
    }
    resume(thread, 0);
  } else if (event == PTRACE_EVENT_CLONE) {
    learn_of_new_thread(thread);
    resume(thread, 0);
  } else if (event == PTRACE_EVENT_FORK) {
    turn_to_child(thread);
  } else {
    resume(thread, event != 0 ? 0 : WSTOPSIG(status));
  }
  return std::nullopt;
}

void SystemCallTracer::turn_to_child(pid_t parent) {
  unsigned long child = 0;
  KV_CHECK(ptrace(PTRACE_GETEVENTMSG, parent, nullptr, &child) == 0, errno);
  ptrace(PTRACE_DETACH, parent, nullptr, 0L);
  pid_ = static_cast<pid_t>(child);
  threads_ = {pid_};
  standing_.clear();
  // It forks children of its own, which are not followed.
  int status = 0;
  KV_CHECK(waitpid(pid_, &status, __WALL) == pid_ && WIFSTOPPED(status), status);
  KV_CHECK(ptrace(PTRACE_SETOPTIONS, pid_, nullptr, kOptions) == 0, errno);
  resume(pid_, 0);
}

void SystemCallTracer::on_end(pid_t thread, int status) {
  threads_.erase(thread);
  standing_.erase(thread);
  if (thread == pid_) end_ = status;
}

/// Whether all threads sleep, and have slept since the last call.
bool SystemCallTracer::is_asleep() {
  std::string states;
  bool all_sleep = true;
  for (const pid_t thread : threads_) {
    std::ifstream rows(tasks_of(pid_) / std::to_string(thread) / "status");
    for (std::string row; std::getline(rows, row);) {
      if (row.rfind("State:", 0) == 0) all_sleep &= row.find("\tS") != std::string::npos;
      if (row.rfind("voluntary_ctxt", 0) == 0) states += row;
    }
  }
  const bool is_as_before = states == last_states_;
  last_states_ = std::move(states);
  return all_sleep && is_as_before;
}

void SystemCallTracer::kill() {
  // A thread that was just made may not be known yet.
  threads_.merge(threads_of(pid_));
  KV_CHECK(::kill(pid_, SIGKILL) == 0, errno);
  threads_.erase(pid_);  // comes last: the kernel reports its end after those of the others
  for (const pid_t thread : std::exchange(threads_, {}))
    for (int status = 0x7f; WIFSTOPPED(status);)
      if (waitpid(thread, &status, __WALL) < 0) break;
  int status = 0x7f;
  while (WIFSTOPPED(status)) KV_CHECK(waitpid(pid_, &status, __WALL) == pid_, errno);
  KV_CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL, status);
  on_end(pid_, status);
}

/// A thread that stays behind traced would keep the process from ever being collected.
void SystemCallTracer::detach() {
  if (!threads_.empty()) threads_.merge(threads_of(pid_));
  std::set<pid_t> ended;
  while (!threads_.empty()) {
    const pid_t thread = threads_.extract(threads_.begin()).value();
    if (!release(thread)) ended.insert(thread);
  }
  standing_.clear();
  // One that has ended is collected: else the process's parent would not see that it has. The first
  // thread's end comes last.
  while (!ended.empty())
    std::erase_if(ended, [this](pid_t thread) {
      int status = 0;
      const pid_t collected = waitpid(thread, &status, __WALL | WNOHANG);
      if (collected > 0) on_end(thread, status);
      return collected != 0;
    });
}

/// It may just have made a thread, which is traced, too.
void SystemCallTracer::learn_of_new_thread(pid_t thread) {
  unsigned long made = 0;
  if (ptrace(PTRACE_GETEVENTMSG, thread, nullptr, &made) == 0)
    threads_.insert(static_cast<pid_t>(made));
}

/// False = it has ended, and may still have to be collected.
bool SystemCallTracer::release(pid_t thread) {
  int signal = 0;
  if (standing_.count(thread) == 0) {
    int status = 0;
    const bool is_traced = ptrace(PTRACE_INTERRUPT, thread, nullptr, nullptr) == 0;
    if (!is_traced) return false;
    if (waitpid(thread, &status, __WALL) < 0) return true;
    if (!WIFSTOPPED(status)) {
      on_end(thread, status);
      return true;
    }
    if (status >> 16 == PTRACE_EVENT_CLONE) learn_of_new_thread(thread);
    const bool is_signal = status >> 16 == 0 && WSTOPSIG(status) != kSystemCallStop;
    if (is_signal) signal = WSTOPSIG(status);
  }
  return ptrace(PTRACE_DETACH, thread, nullptr, static_cast<long>(signal)) == 0;
}

bool SystemCallTracer::is_allowed() {
  const pid_t pid = fork();
  if (pid == 0) {
    pause();
    _exit(0);
  }
  const bool is_seized = ptrace(PTRACE_SEIZE, pid, nullptr, 0L) == 0;
  ::kill(pid, SIGKILL);
  waitpid(pid, nullptr, __WALL);
  return is_seized;
}

}  // namespace kvhive::testing
