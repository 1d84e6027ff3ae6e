#include "tools/privilege/call_reports.hpp"

#include <seccomp.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <ucontext.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <memory>
#include <string>
#include <system_error>
#include <thread>

#include "base/log.hpp"
#include "base/logging/log_limit.hpp"
#include "base/unique_fd.hpp"

#ifndef SYS_SECCOMP
#define SYS_SECCOMP 1  // si_code of a SIGSYS that a filter has caused
#endif

namespace kvhive {
namespace {

/// Calls with higher numbers are counted together, under the last one.
constexpr std::size_t kNumbers = 1024;

// The handler may interrupt any function, so it only counts here and rings.
std::array<std::atomic<std::uint32_t>, kNumbers> refused;
std::atomic<int> bell{-1};

void return_from_call(void* context, long result) {
  auto& registers = static_cast<ucontext_t*>(context)->uc_mcontext;
#if defined(__x86_64__)
  registers.gregs[REG_RAX] = result;
#elif defined(__aarch64__)
  registers.regs[0] = static_cast<unsigned long long>(result);
#else
#error "return_from_call: the register with a system call's result is not known for this CPU"
#endif
}

void on_refused_call(int, siginfo_t* info, void* context) {
  if (info->si_code != SYS_SECCOMP) return;
  const int saved = errno;
  const auto number = static_cast<std::size_t>(std::max(0, info->si_syscall));
  refused[std::min(number, kNumbers - 1)].fetch_add(1, std::memory_order_relaxed);
  const std::uint64_t one = 1;
  [[maybe_unused]] const ssize_t rung = write(bell.load(), &one, sizeof one);
  errno = saved;
  return_from_call(context, -ENOSYS);
}

std::string name_of(int number) {
  const std::unique_ptr<char, decltype(&std::free)> name(
      seccomp_syscall_resolve_num_arch(SCMP_ARCH_NATIVE, number), std::free);
  return name == nullptr ? "unknown" : name.get();
}

void log_refused_calls() {
  static std::map<std::size_t, LogLimit> limits;  // each call is a cause of its own
  for (std::size_t number = 0; number < kNumbers; ++number) {
    const std::uint32_t times = refused[number].exchange(0, std::memory_order_relaxed);
    if (times == 0) continue;
    if (const auto note = limits[number].admit())
      spdlog::error(
          "refused a system call that is not in its list, {} times: {} (number {}). A call is "
          "missing in the list, or somebody has broken into this process; --system-call-filter off "
          "turns the lists off{}",
          times, name_of(static_cast<int>(number)), number, *note);
  }
}

[[noreturn]] void log_when_rung() {
  while (true) {
    std::uint64_t rings = 0;
    if (read(bell.load(), &rings, sizeof rings) == sizeof rings) log_refused_calls();
  }
}

}  // namespace

Expected<void> report_refused_calls() {
  UniqueFd fd(eventfd(0, EFD_CLOEXEC));
  if (!fd) return os_failure("eventfd");
  try {
    bell = fd.get();
    std::thread(log_when_rung).detach();
  } catch (const std::system_error& error) {
    return failure(Errc::os_error, std::string("no thread that reports refused system calls: ") +
                                       error.what() +
                                       "; raise the limit of processes (ulimit -u), or give "
                                       "--system-call-filter off");
  }
  (void)fd.release();  // as long as the process lives
  struct sigaction action {};
  action.sa_sigaction = on_refused_call;
  action.sa_flags = SA_SIGINFO | SA_RESTART;
  sigfillset(&action.sa_mask);
  if (sigaction(SIGSYS, &action, nullptr) != 0) return os_failure("sigaction SIGSYS");
  return {};
}

}  // namespace kvhive
