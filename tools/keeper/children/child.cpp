#include "tools/keeper/children/child.hpp"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <filesystem>

#include "base/logging/patient_write.hpp"
#include "ipc/pidfd.hpp"
#include "tools/keeper/children/reaper.hpp"
#include "tools/placement/processor_mask.hpp"

namespace kvhive {
namespace {

/// In the child: becomes the program, or exits with 127.
[[noreturn]] void execute(const std::string& program, const std::vector<std::string>& flags) {
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  const std::string path = program_directory() + "/" + program;
  std::vector<char*> arguments = {const_cast<char*>(path.c_str())};
  for (const std::string& flag : flags) arguments.push_back(const_cast<char*>(flag.c_str()));
  arguments.push_back(nullptr);
  execv(path.c_str(), arguments.data());
  const int code = errno;
  // Between fork() and exec() nothing may be logged: the child has no thread that writes the log.
  // The exit code tells, too, if standard error has no room for the line.
  (void)write_patiently(STDERR_FILENO,
                        "cannot execute " + path + ": errno " + std::to_string(code) + "\n",
                        std::chrono::milliseconds(0));
  _exit(127);
}

tl::unexpected<Error> fork_failure(const std::string& program) {
  const bool is_rationed = errno == EAGAIN;
  auto failed = os_failure("fork " + program);
  if (is_rationed)
    failed.value().text +=
        "; there are as many processes as may be (ulimit -u, the cgroup's pids.max): raise the "
        "limit, or start fewer engines";
  return failed;
}

std::string describe(int status) {
  if (WIFEXITED(status)) return "exit code " + std::to_string(WEXITSTATUS(status));
  const int number = WTERMSIG(status);
  return "signal " + std::to_string(number) +
         (number == SIGSYS ? " (it made a system call that is not in its list; "
                             "--system-call-filter off allows all)"
                           : "");
}

}  // namespace

std::string program_directory() {
  return std::filesystem::read_symlink("/proc/self/exe").parent_path().string();
}

Expected<void> start_child(Child& child, const Streams& streams) {
  ++child.starts;
  child.last_start = std::chrono::steady_clock::now();
  int gate[2] = {-1, -1};
  if (child.waits_for_go && pipe2(gate, O_CLOEXEC) != 0) return os_failure("pipe");
  const UniqueFd waits(gate[0]);
  child.gate = UniqueFd(gate[1]);
  const ProcessorMask processors(child.place.processors);
  const pid_t keeper = getpid();
  const pid_t pid = fork();
  if (pid < 0) return fork_failure(child.program);
  if (pid == 0) {
    if (waits) {
      child.gate = UniqueFd();
      char go;
      if (read(waits.get(), &go, 1) != 1) _exit(0);  // the keeper is dead, and does not know of it
    }
    for (const int fd : child.inherits) fcntl(fd, F_SETFD, 0);
    if (child.ends_with_keeper) {
      // It also ends when its socket hangs up, but not while it is stopped.
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (getppid() != keeper) _exit(0);
    }
    (void)processors.bind();  // if all were taken away meanwhile, it runs where it may
    if (child.place.threads != 0) {
      // Several engines share the cores, so threads that wait must sleep, not spin.
      setenv("OMP_NUM_THREADS", std::to_string(child.place.threads).c_str(), 1);
      setenv("OMP_WAIT_POLICY", "passive", 1);
    }
    if (streams.in >= 0) dup2(streams.in, STDIN_FILENO);
    if (streams.out >= 0) dup2(streams.out, STDOUT_FILENO);
    if (streams.err >= 0) dup2(streams.err, STDERR_FILENO);
    execute(child.program, child.flags);
  }
  auto pidfd = pidfd_of(pid);
  if (!pidfd) {  // no descriptor is left: a child that cannot be watched must not run
    kill(pid, SIGKILL);
    waitpid(pid, nullptr, 0);
    return forward_error(pidfd);
  }
  child.pidfd = std::move(*pidfd);
  child.pid = pid;
  return {};
}

void let_go(Child& child) {
  const char go = 'g';
  // An error means that it was killed; its pidfd tells.
  [[maybe_unused]] const ssize_t written = write(child.gate.get(), &go, 1);
  child.gate = UniqueFd();
}

std::string collect(Child& child, Collected when) {
  const auto status = end_of_child(child.pid, IfItRuns::wait);
  if (status && when == Collected::at_once) waitpid(child.pid, nullptr, 0);
  if (status && when == Collected::later) collect_later(child.pid);
  child.is_end_known = status.has_value();
  child.pid = 0;
  child.pidfd = UniqueFd();
  child.gate = UniqueFd();
  if (!child.is_end_known) {
    child.last_exit_code = -1;
    return "an earlier keeper had started it, so how is not known; see its last lines";
  }
  return take_end(child, *status);
}

std::string take_end(Child& child, int status) {
  child.last_exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  return describe(status);
}

}  // namespace kvhive
