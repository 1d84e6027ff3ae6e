#pragma once
// Runs a program in its own PID, mount, IPC and time namespaces, as in a container. It is process 2
// there; process 1 is an init that supervises it.

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>
#include <string>

#ifndef CLONE_NEWTIME
#define CLONE_NEWTIME 0x00000080
#endif

namespace kvhive::testing {

/// The loop of both supervisors, outside and inside the namespaces. Passes SIGTERM on to the
/// program, makes SIGUSR1 kill it from inside its namespace, and ends with the program's exit code.
[[noreturn]] inline void supervise(pid_t child, const sigset_t& signals, bool is_inside) {
  while (true) {
    int signal = 0;
    sigwait(&signals, &signal);
    if (signal == SIGTERM) kill(child, SIGTERM);
    if (signal == SIGUSR1) kill(child, is_inside ? SIGKILL : SIGUSR1);
    int status = 0;
    if (signal == SIGCHLD && waitpid(child, &status, WNOHANG) == child)
      _exit(WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status));
  }
}

/// Returns a function to call in a forked child before execv(). The calling process stays outside
/// the namespaces as the supervisor; the function returns in the new process inside.
///
/// \param clock_offset  seconds that the monotonic clock inside is ahead of the one outside
inline std::function<void()> in_namespaces(long clock_offset = 0) {
  return [clock_offset] {
    sigset_t signals, before;
    sigemptyset(&signals);
    for (const int signal : {SIGTERM, SIGUSR1, SIGCHLD}) sigaddset(&signals, signal);
    sigprocmask(SIG_BLOCK, &signals, &before);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (unshare(CLONE_NEWPID | CLONE_NEWNS | CLONE_NEWIPC | CLONE_NEWTIME) != 0) _exit(126);
    const std::string offsets = "monotonic " + std::to_string(clock_offset) + " 0\nboottime " +
                                std::to_string(clock_offset) + " 0\n";
    const int file = open("/proc/self/timens_offsets", O_WRONLY | O_CLOEXEC);
    if (write(file, offsets.data(), offsets.size()) != static_cast<ssize_t>(offsets.size()))
      _exit(126);
    close(file);
    if (const pid_t init = fork(); init != 0) supervise(init, signals, false);

    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
        mount("proc", "/proc", "proc", 0, nullptr) != 0)
      _exit(126);
    if (const pid_t program = fork(); program != 0) supervise(program, signals, true);
    sigprocmask(SIG_SETMASK, &before, nullptr);
  };
}

/// The same, but the program is process 1 there, as a container's entry point is: who started it
/// sees SIGTERM passed on to it, and its exit code.
inline std::function<void()> as_process_1() {
  return [] {
    sigset_t signals, before;
    sigemptyset(&signals);
    for (const int signal : {SIGTERM, SIGUSR1, SIGCHLD}) sigaddset(&signals, signal);
    sigprocmask(SIG_BLOCK, &signals, &before);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (unshare(CLONE_NEWPID | CLONE_NEWNS) != 0) _exit(126);
    if (const pid_t program = fork(); program != 0) supervise(program, signals, false);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
        mount("proc", "/proc", "proc", 0, nullptr) != 0)
      _exit(126);
    sigprocmask(SIG_SETMASK, &before, nullptr);
  };
}

/// Whether this process may make such namespaces.
inline bool can_make_namespaces() {
  const pid_t child = fork();
  if (child == 0) {
    in_namespaces()();
    _exit(0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

}  // namespace kvhive::testing
