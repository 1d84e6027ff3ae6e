// To collect an ended process may take the kernel seconds. Nobody waits for it: the thread that
// collects is held up here where it calls the kernel, as by the kernel.

#include <gmock/gmock.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include <fstream>

#include "tests/tools/daemon.hpp"
#include "tests/tools/requests.hpp"

namespace kvhive::testing {
namespace {

/// The thread of a process that collects its children; 0 = there is none.
pid_t collecting_thread_of(pid_t process) {
  namespace fs = std::filesystem;
  for (const auto& thread : fs::directory_iterator("/proc/" + std::to_string(process) + "/task")) {
    std::string name;
    std::getline(std::ifstream(thread.path() / "comm"), name);
    if (name == "kvhived-reaper") return std::stoi(thread.path().filename());
  }
  return 0;
}

/// A thread that does not run between the calls of this object while it lives; the other threads of
/// its process do.
class HeldThread {
 public:
  explicit HeldThread(pid_t thread) : thread_(thread) {
    is_held_ = ptrace(PTRACE_SEIZE, thread_, 0, PTRACE_O_TRACESYSGOOD) == 0 &&
               ptrace(PTRACE_INTERRUPT, thread_, 0, 0) == 0 &&
               waitpid(thread_, nullptr, __WALL) == thread_;
  }
  ~HeldThread() {
    if (is_held_) ptrace(PTRACE_DETACH, thread_, 0, 0);
  }
  HeldThread(const HeldThread&) = delete;
  HeldThread& operator=(const HeldThread&) = delete;

  bool is_held() const { return is_held_; }

  /// Lets it run until it is about to wait for a child. False = it has ended instead.
  bool runs_until_it_collects() {
    constexpr int kAtSystemCall = SIGTRAP | 0x80;
    int status = 0;
    while (ptrace(PTRACE_SYSCALL, thread_, 0, 0) == 0 &&
           waitpid(thread_, &status, __WALL) == thread_ && WIFSTOPPED(status)) {
      if (WSTOPSIG(status) != kAtSystemCall) continue;
      __ptrace_syscall_info call{};
      ptrace(PTRACE_GET_SYSCALL_INFO, thread_, sizeof call, &call);
      if (call.op == PTRACE_SYSCALL_INFO_ENTRY && call.entry.nr == SYS_wait4) return true;
    }
    return is_held_ = false;
  }

 private:
  const pid_t thread_;
  bool is_held_ = false;
};

bool is_zombie(pid_t process) { return state_of(process) == 'Z'; }

TEST(Collecting, OfKilledKeepersHoldsNobodyUp) {
  const Daemon daemon;
  const pid_t thread = collecting_thread_of(daemon.pid());
  ASSERT_NE(thread, 0);
  std::vector<pid_t> killed;
  {
    HeldThread held(thread);
    if (!held.is_held()) GTEST_SKIP() << "ptrace is not allowed here";
    for (int kills = 0; kills < 4; ++kills) {
      killed.push_back(daemon.keeper());
      daemon.kill_keeper();
      if (kills == 0) {
        ASSERT_TRUE(held.runs_until_it_collects());
      }
      EXPECT_EQ(daemon.connect().generate(long_request(8))->tokens.size(), 8u);
    }
    for (const pid_t keeper : killed) EXPECT_TRUE(is_zombie(keeper));
  }
  EXPECT_TRUE(eventually([&] { return std::none_of(killed.begin(), killed.end(), is_zombie); }));
}

TEST(Collecting, OfKilledEnginesHoldsNobodyUp) {
  const Daemon daemon;
  const auto engine = [&](int number) -> pid_t {
    return daemon.status()["engines"][number]["pid"];
  };
  const auto kill_engine = [&](int number) {
    const pid_t before = engine(number);
    signal_process(before, SIGKILL);
    EXPECT_TRUE(eventually(
        [&] {
          const Json now = daemon.status()["engines"][number];
          return now["pid"] != before && now["state"] == "serving";
        },
        kHang));
    return before;
  };
  kill_engine(0);  // the thread is started with the first that ends
  const pid_t thread = collecting_thread_of(daemon.keeper());
  ASSERT_NE(thread, 0);
  std::vector<pid_t> killed;
  {
    HeldThread held(thread);
    if (!held.is_held()) GTEST_SKIP() << "ptrace is not allowed here";
    killed.push_back(kill_engine(0));
    ASSERT_TRUE(held.runs_until_it_collects());
    killed.push_back(kill_engine(1));
    for (const pid_t ended : killed) EXPECT_TRUE(is_zombie(ended));
    EXPECT_EQ(daemon.connect(1).generate(long_request(8))->tokens.size(), 8u);
  }
  EXPECT_TRUE(eventually([&] { return std::none_of(killed.begin(), killed.end(), is_zombie); }));
}

}  // namespace
}  // namespace kvhive::testing
