#include "tests/crash/traced_child.hpp"

#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/check.hpp"

// A system call instruction for TracedChild::call().
extern "C" const char kvhive_system_call[];
asm("kvhive_system_call: syscall; int3");

namespace kvhive::testing {
namespace {

/// Stops the child for the parent. It is one instruction, so that no instruction of the harness
/// counts as a step.
inline void breakpoint() { asm volatile("int3" ::: "memory"); }

int wait_for(pid_t pid, int options) {
  int status = 0;
  while (waitpid(pid, &status, options) < 0) KV_CHECK(errno == EINTR, errno);
  return status;
}

bool is_at_breakpoint(pid_t pid, int status) {
  KV_CHECK(WIFSTOPPED(status) && WSTOPSIG(status) == SIGTRAP, status, WSTOPSIG(status));
  siginfo_t info{};
  KV_CHECK(ptrace(PTRACE_GETSIGINFO, pid, nullptr, &info) == 0, errno);
  return info.si_code == SI_KERNEL;  // a step has TRAP_TRACE, or TRAP_BRKPT after a system call
}

}  // namespace

TracedChild::TracedChild(const std::function<void()>& body, const std::function<void()>& afterwards)
    : pid_(fork()) {
  KV_CHECK(pid_ >= 0, errno);
  if (pid_ == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    signal(SIGTRAP, [](int) {});  // for the second breakpoint, if the parent no longer traces
    KV_CHECK(ptrace(PTRACE_TRACEME, 0, nullptr, nullptr) == 0, errno);
    breakpoint();
    body();
    breakpoint();
    afterwards();
    _exit(0);
  }
  KV_CHECK(is_at_breakpoint(pid_, wait_for(pid_, 0)));
}

TracedChild::~TracedChild() {
  if (pid_ != 0) kill();
}

bool TracedChild::step() {
  KV_CHECK(ptrace(PTRACE_SINGLESTEP, pid_, nullptr, nullptr) == 0, errno);
  return !is_at_breakpoint(pid_, wait_for(pid_, 0));
}

user_regs_struct TracedChild::registers() const {
  user_regs_struct registers;
  KV_CHECK(ptrace(PTRACE_GETREGS, pid_, nullptr, &registers) == 0, errno);
  return registers;
}

bool TracedChild::is_system_call(const user_regs_struct& registers) {
  return std::memcmp(reinterpret_cast<const void*>(registers.rip), kvhive_system_call, 2) == 0;
}

long TracedChild::call(long number, std::array<unsigned long, 6> arguments) const {
  const user_regs_struct saved = registers();
  user_regs_struct changed = saved;
  changed.rip = reinterpret_cast<unsigned long>(kvhive_system_call);
  changed.rax = static_cast<unsigned long>(number);
  changed.rdi = arguments[0];
  changed.rsi = arguments[1];
  changed.rdx = arguments[2];
  changed.r10 = arguments[3];
  changed.r8 = arguments[4];
  changed.r9 = arguments[5];
  KV_CHECK(ptrace(PTRACE_SETREGS, pid_, nullptr, &changed) == 0, errno);
  KV_CHECK(ptrace(PTRACE_SINGLESTEP, pid_, nullptr, nullptr) == 0, errno);
  KV_CHECK(!is_at_breakpoint(pid_, wait_for(pid_, 0)));
  const user_regs_struct after = registers();
  KV_CHECK(ptrace(PTRACE_SETREGS, pid_, nullptr, &saved) == 0, errno);
  return static_cast<long>(after.rax);
}

TracedChild TracedChild::clone() const {
  const user_regs_struct here = registers();
  // The copy is a child of this process, and traced by it, from its start.
  const long pid = call(SYS_clone, {CLONE_PARENT | CLONE_PTRACE | SIGCHLD});
  KV_CHECK(pid > 0, pid);
  const int status = wait_for(static_cast<pid_t>(pid), __WALL);
  KV_CHECK(WIFSTOPPED(status) && WSTOPSIG(status) == SIGSTOP, status);
  KV_CHECK(ptrace(PTRACE_SETOPTIONS, pid, nullptr, PTRACE_O_EXITKILL) == 0, errno);
  KV_CHECK(ptrace(PTRACE_SETREGS, pid, nullptr, &here) == 0, errno);
  return TracedChild(static_cast<pid_t>(pid));
}

bool TracedChild::run() {
  KV_CHECK(ptrace(PTRACE_CONT, pid_, nullptr, nullptr) == 0, errno);
  const int status = wait_for(pid_, 0);
  if (!WIFSTOPPED(status)) pid_ = 0;
  return WIFSTOPPED(status) && WSTOPSIG(status) == SIGTRAP;
}

void TracedChild::pause() { breakpoint(); }

void TracedChild::kill() {
  KV_CHECK(::kill(pid_, SIGKILL) == 0, errno);
  const int status = wait();
  KV_CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL, status);
}

void TracedChild::leave_stopped() {
  KV_CHECK(ptrace(PTRACE_DETACH, pid_, nullptr, SIGSTOP) == 0, errno);
  KV_CHECK(WIFSTOPPED(wait_for(pid_, WUNTRACED)));
}

void TracedChild::go_on() { KV_CHECK(::kill(pid_, SIGCONT) == 0, errno); }

int TracedChild::wait() {
  const int status = wait_for(pid_, 0);
  pid_ = 0;
  return status;
}

bool TracedChild::is_allowed() {
  const pid_t pid = fork();
  if (pid == 0) _exit(ptrace(PTRACE_TRACEME, 0, nullptr, nullptr) == 0 ? 0 : 1);
  const int status = wait_for(pid, 0);
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

}  // namespace kvhive::testing
