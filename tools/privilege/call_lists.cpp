#include "tools/privilege/call_lists.hpp"

#include <fcntl.h>
#include <linux/sched.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/socket.h>

namespace kvhive {
namespace {

// -- of all programs: memory, threads, time, files and sockets that are open, the log ------------

constexpr const char* kMemory[] = {"brk", "madvise", "mmap", "mprotect", "mremap", "munmap"};

constexpr const char* kThreads[] = {"exit",
                                    "exit_group",
                                    "futex",
                                    "get_robust_list",
                                    "getcpu",
                                    "getpriority",
                                    "gettid",
                                    "membarrier",
                                    "rseq",
                                    "sched_getaffinity",
                                    "sched_setaffinity",
                                    "sched_yield",
                                    "set_robust_list"};

constexpr const char* kTime[] = {"clock_getres", "clock_gettime", "clock_nanosleep",
                                 "gettimeofday", "nanosleep",     "time"};

constexpr const char* kSignals[] = {"restart_syscall", "rt_sigaction", "rt_sigprocmask",
                                    "rt_sigreturn", "sigaltstack"};

constexpr const char* kDescriptors[] = {
    "close",     "dup",         "dup2",       "dup3",           "epoll_create1",
    "epoll_ctl", "epoll_pwait", "epoll_wait", "eventfd2",       "fstat",
    "lseek",     "newfstatat",  "poll",       "ppoll",          "pread64",
    "read",      "readv",       "statx",      "timerfd_create", "timerfd_settime",
    "write",     "writev"};

/// The log file is opened again on SIGHUP, and /proc tells of other processes.
constexpr const char* kFiles[] = {"getcwd", "getdents64", "openat", "readlink", "readlinkat"};

constexpr const char* kConnections[] = {"getpeername", "getsockname", "getsockopt", "recvfrom",
                                        "recvmsg",     "sendmsg",     "sendto",     "shutdown"};

constexpr const char* kOwnIds[] = {"getegid",   "geteuid", "getgid",  "getpid", "getppid",
                                   "getrandom", "getuid",  "sysinfo", "uname"};

constexpr unsigned kAll = ~0u;

constexpr CallWithArgument kNaming[] = {{"prctl", 0, kAll, PR_SET_NAME},
                                        {"prctl", 0, kAll, PR_GET_NAME},
                                        {"prctl", 0, kAll, PR_SET_VMA}};
constexpr CallWithArgument kOwnLimits[] = {{"prlimit64", 0, kAll, 0}, {"setpriority", 1, kAll, 0}};
/// F_SETOWN and F_SETSIG are left out: with them a process has any signal sent to any process of
/// its user.
constexpr CallWithArgument kCommands[] = {
    {"fcntl", 1, kAll, F_DUPFD},     {"fcntl", 1, kAll, F_DUPFD_CLOEXEC},
    {"fcntl", 1, kAll, F_GETFD},     {"fcntl", 1, kAll, F_SETFD},
    {"fcntl", 1, kAll, F_GETFL},     {"fcntl", 1, kAll, F_SETFL},
    {"fcntl", 1, kAll, F_GET_SEALS}, {"fcntl", 1, kAll, F_ADD_SEALS},
    {"fcntl", 1, kAll, F_SETLK},     {"fcntl", 1, kAll, F_GETLK}};
constexpr CallWithArgument kTerminals[] = {{"ioctl", 1, kAll, TCGETS},
                                           {"ioctl", 1, kAll, TIOCGWINSZ}};

// -- only of some programs ------------------------------------------------------------------------

/// Threads, not processes.
constexpr CallWithArgument kNewThreads[] = {{"clone", 0, CLONE_THREAD, CLONE_THREAD}};
constexpr const char* kForks[] = {"fork", "vfork"};
/// Threads and processes, but no namespaces: in one of its own user, a process has capabilities.
constexpr unsigned kNamespaces = CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWNET | CLONE_NEWPID |
                                 CLONE_NEWIPC | CLONE_NEWUTS | CLONE_NEWCGROUP;
constexpr CallWithArgument kPipeSizes[] = {{"fcntl", 1, kAll, F_SETPIPE_SZ}};
constexpr CallWithArgument kNewProcesses[] = {{"clone", 0, kNamespaces, 0}};

/// The steward removes the socket of a killed keeper. It connects first, to learn whether another
/// daemon listens there.
constexpr CallWithArgument kUnixSockets[] = {{"socket", 0, kAll, AF_UNIX}};
constexpr const char* kSocketFiles[] = {"connect", "flock", "rmdir", "unlink", "unlinkat"};

/// If front and keeper are killed, it ends the engines that are stopped.
constexpr const char* kEndingEngines[] = {"pidfd_open", "pidfd_send_signal"};

constexpr const char* kKeeper[] = {"tgkill",
                                   "accept4",
                                   "bind",
                                   "chmod",
                                   "close_range",
                                   "fallocate",
                                   "fchmod",
                                   "fchmodat",
                                   "fchown",
                                   "fchownat",
                                   "ftruncate",
                                   "getgroups",
                                   "kill",
                                   "listen",
                                   "lstat",
                                   "memfd_create",
                                   "mkdir",
                                   "mkdirat",
                                   "pidfd_open",
                                   "pidfd_send_signal",
                                   "pipe2",
                                   "pwrite64",
                                   "setsid",
                                   "setsockopt",
                                   "vmsplice",
                                   "signalfd4",
                                   "socketpair",
                                   "stat",
                                   "sync_file_range",
                                   "umask",
                                   "wait4",
                                   "waitid",
                                   "rt_sigqueueinfo",
                                   "rt_sigtimedwait"};

/// What programs do as they start, until they have a filter of their own.
constexpr const char* kStart[] = {
    "access",    "arch_prctl",      "capget",         "capset",
    "execve",    "faccessat",       "faccessat2",     "fadvise64",
    "getrlimit", "getrusage",       "ioctl",          "mincore",
    "mlock",     "mlock2",          "msync",          "munlock",
    "open",      "prctl",           "sched_getparam", "sched_getscheduler",
    "seccomp",   "set_tid_address", "setrlimit",      "statfs",
    "fstatfs"};

}  // namespace

std::string_view to_string(Program program) {
  switch (program) {
    case Program::keeper: return "keeper";
    case Program::steward: return "steward";
    case Program::engine: return "engine";
  }
  return "?";
}

CallList calls_of(Program program) {
  CallList list{{kMemory, kThreads, kTime, kSignals, kDescriptors, kFiles, kConnections, kOwnIds},
                {}};
  switch (program) {
    case Program::engine:
      list.with_argument = {kNaming, kTerminals, kOwnLimits, kCommands, kNewThreads};
      break;
    case Program::steward:
      list.calls.push_back(kSocketFiles);
      list.calls.push_back(kEndingEngines);
      list.with_argument = {kNaming, kTerminals, kOwnLimits, kCommands, kUnixSockets};
      break;
    case Program::keeper:
      for (const std::span<const char* const> more :
           {std::span<const char* const>(kForks), std::span<const char* const>(kSocketFiles),
            std::span<const char* const>(kKeeper), std::span<const char* const>(kStart)})
        list.calls.push_back(more);
      list.with_argument = {kOwnLimits, kCommands, kUnixSockets, kPipeSizes, kNewProcesses};
      break;
  }
  return list;
}

}  // namespace kvhive
