// The filters of system calls, each in a process of its own.

#include "tools/privilege/system_calls.hpp"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <pthread.h>
#include <sched.h>
#include <seccomp.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <fstream>
#include <functional>
#include <set>
#include <sstream>
#include <thread>

#include "base/check.hpp"
#include "base/log.hpp"
#include "tests/support/child_process.hpp"
#include "tests/support/sanitizers.hpp"
#include "tests/support/temp_directory.hpp"
#include "tools/privilege/call_lists.hpp"

namespace kvhive::testing {
namespace {

using ::testing::HasSubstr;

struct Call {
  const char* name;
  std::function<long()> make;
};

/// What an attacker who runs code in the process would try first.
const std::vector<Call> kDangerous = {
    {"ptrace", [] { return ptrace(PTRACE_TRACEME, 0, 0, 0); }},
    {"process_vm_readv", [] { return syscall(SYS_process_vm_readv, getppid(), 0, 0, 0, 0, 0); }},
    {"socket", [] { return syscall(SYS_socket, AF_INET, SOCK_STREAM, 0); }},
    {"execve", [] { return syscall(SYS_execve, "/bin/true", nullptr, nullptr); }},
    {"fork", [] { return syscall(SYS_fork); }},
    {"kill", [] { return syscall(SYS_kill, getppid(), 0); }},
    {"tgkill", [] { return syscall(SYS_tgkill, getppid(), getppid(), 0); }},
    {"unshare", [] { return syscall(SYS_unshare, 0); }},
    {"clone", [] { return syscall(SYS_clone, CLONE_NEWUSER | SIGCHLD, 0, 0, 0, 0); }},
    {"mount", [] { return syscall(SYS_mount, "", "/", "", 0, ""); }},
    {"bpf", [] { return syscall(SYS_bpf, 0, 0, 0); }},
    {"io_uring_setup", [] { return syscall(SYS_io_uring_setup, 1, 0); }},
    {"userfaultfd", [] { return syscall(SYS_userfaultfd, 0); }},
    {"perf_event_open", [] { return syscall(SYS_perf_event_open, 0, 0, 0, 0, 0); }},
    {"keyctl", [] { return syscall(SYS_keyctl, 0, 0, 0, 0, 0); }},
    {"prctl", [] { return prctl(PR_SET_DUMPABLE, 1); }},
    {"fcntl", [] { return fcntl(0, F_SETOWN, getppid()); }},
    {"prlimit64", [] { return syscall(SYS_prlimit64, getppid(), RLIMIT_CPU, nullptr, nullptr); }},
    {"setpriority", [] { return setpriority(PRIO_PROCESS, static_cast<id_t>(getppid()), 19); }},
};

class FilteredProcess : public ::testing::TestWithParam<Program> {
 protected:
  void SetUp() override {
    if (kUnderSanitizer)
      GTEST_SKIP() << "NOT RUN: sanitizers make calls of their own, so there is no filter";
  }
  /// Runs `body` in a child that logs to a file and has the program's filter.
  void in_child(const std::function<void()>& body) {
    ChildProcess child([&] {
      KV_CHECK(start_log("filtered", "info", log()).has_value());
      KV_CHECK(keep_only_calls_of(GetParam(), SystemCallFilter::on).has_value());
      body();
      _exit(0);
    });
    EXPECT_TRUE(ended_well(child.wait()));
  }
  std::string log() const { return directory_.path() / "log"; }
  std::string logged() const {
    std::ostringstream text;
    text << std::ifstream(log()).rdbuf();
    return text.str();
  }

 private:
  TempDirectory directory_;
};

TEST_P(FilteredProcess, ACallThatIsNotInTheListFailsAndIsLogged) {
  in_child([this] {
    for (const Call& call : kDangerous) {
      errno = 0;
      KV_CHECK(call.make() == -1 && errno == ENOSYS, call.name, errno);
    }
    // Another thread writes the log. Its lines are waited for, because it ends with this process.
    for (const Call& call : kDangerous)
      while (logged().find(std::string(": ") + call.name + " (") == std::string::npos)
        std::this_thread::yield();
  });
  for (const Call& call : kDangerous) EXPECT_THAT(logged(), HasSubstr(call.name));
}

TEST_P(FilteredProcess, StillTakesMemoryOpensItsLogAgainAndAnEngineStartsThreads) {
  in_child([] {
    if (GetParam() == Program::engine) {
      std::thread([] {}).join();
      // As OpenMP does with OMP_PROC_BIND: the C library pins the thread with all signals blocked.
      cpu_set_t cores;
      KV_CHECK(sched_getaffinity(0, sizeof cores, &cores) == 0);
      pthread_attr_t pinned;
      pthread_attr_init(&pinned);
      pthread_attr_setaffinity_np(&pinned, sizeof cores, &cores);
      pthread_t thread;
      KV_CHECK(pthread_create(
                   &thread, &pinned, [](void*) -> void* { return nullptr; }, nullptr) == 0);
      pthread_join(thread, nullptr);
    }
    const std::vector<char> large(std::size_t{64} << 20, 1);
    KV_CHECK(large.back() == 1);
    KV_CHECK(reopen_log().has_value());
    flush_log();
  });
  EXPECT_EQ(logged(), "");
}

TEST_P(FilteredProcess, TheFilterHoldsForThreadsStartedBefore) {
  ChildProcess child([this] {
    KV_CHECK(start_log("filtered", "info", log()).has_value());
    std::atomic<bool> is_filtered = false, is_refused = false;
    std::thread before([&] {
      while (!is_filtered) std::this_thread::yield();
      is_refused = syscall(SYS_unshare, 0) == -1 && errno == ENOSYS;
    });
    KV_CHECK(keep_only_calls_of(GetParam(), SystemCallFilter::on).has_value());
    is_filtered = true;
    before.join();
    KV_CHECK(is_refused);
    _exit(0);
  });
  EXPECT_TRUE(ended_well(child.wait()));
}

TEST_P(FilteredProcess, OffInstallsNoFilter) {
  ChildProcess child([] {
    KV_CHECK(keep_only_calls_of(GetParam(), SystemCallFilter::off).has_value());
    KV_CHECK(prctl(PR_GET_SECCOMP) == 0);
    _exit(0);
  });
  EXPECT_TRUE(ended_well(child.wait()));
}

INSTANTIATE_TEST_SUITE_P(SystemCalls, FilteredProcess,
                         ::testing::Values(Program::steward, Program::engine),
                         [](const auto& program) { return std::string(to_string(program.param)); });

/// The filter leaves out names that libseccomp does not know, so a typing error would go unnoticed.
TEST(CallLists, HaveCallsOfThisKernelEachOnce) {
  for (const Program program : {Program::keeper, Program::steward, Program::engine}) {
    const CallList list = calls_of(program);
    std::set<std::string> names;
    for (const auto& calls : list.calls)
      for (const std::string name : calls) {
        EXPECT_TRUE(names.insert(name).second) << to_string(program) << ": " << name;
        const bool is_known =
            seccomp_syscall_resolve_name_arch(SCMP_ARCH_X86_64, name.c_str()) >= 0;
        EXPECT_TRUE(is_known) << to_string(program) << ": " << name;
      }
    for (const auto& calls : list.with_argument)
      for (const CallWithArgument& call : calls)
        EXPECT_GE(seccomp_syscall_resolve_name_arch(SCMP_ARCH_X86_64, call.name), 0) << call.name;
  }
}

/// The keeper starts programs, so its list is longer.
TEST(FilteredKeeper, DoesNotGiveItsChildrenWhatNoProgramOfTheDaemonNeeds) {
  if (kUnderSanitizer)
    GTEST_SKIP() << "NOT RUN: sanitizers make calls of their own, so there is no filter";
  const TempDirectory directory;
  ChildProcess child([&] {
    KV_CHECK(start_log("filtered", "info", directory.path() / "log").has_value());
    KV_CHECK(keep_only_calls_of(Program::keeper, SystemCallFilter::on).has_value());
    for (const Call& call : kDangerous) {
      const std::string name = call.name;
      if (name == "execve" || name == "fork" || name == "prctl" || name == "kill" ||
          name == "tgkill")
        continue;
      errno = 0;
      KV_CHECK(call.make() == -1 && errno == ENOSYS, call.name, errno);
    }
    execl("/bin/true", "/bin/true", nullptr);
    _exit(1);
  });
  EXPECT_TRUE(ended_well(child.wait()));
}

}  // namespace
}  // namespace kvhive::testing
