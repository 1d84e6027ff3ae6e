// What the processes of a daemon may do, as the kernel reports it, and --user.

#include <gmock/gmock.h>
#include <cap-ng.h>
#include <pwd.h>
#include <seccomp.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "base/check.hpp"
#include "tests/support/sanitizers.hpp"
#include "tests/tools/daemon.hpp"
#include "tests/tools/start_attempt.hpp"

namespace kvhive::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

/// A line of /proc/PID/status, without its name: "2" of "Seccomp:\t2".
std::string status_of(pid_t pid, const std::string& name) {
  std::ifstream status("/proc/" + std::to_string(pid) + "/status");
  for (std::string line; std::getline(status, line);)
    if (line.starts_with(name + ":")) {
      const auto start = line.find_first_not_of(" \t", name.size() + 1);
      return start == std::string::npos ? "" : line.substr(start);
    }
  return "?";
}

/// Keeper, steward and engines.
std::vector<pid_t> processes_that_serve(const std::string& socket) {
  const Json procs =
      run("kvhive", {"pool", "procs", "--format", "json", "--socket", socket}).json();
  std::vector<pid_t> pids = {procs["keeper"]["pid"], procs["steward"]["pid"]};
  for (const Json& engine : procs["engines"]) pids.push_back(engine["pid"]);
  return pids;
}

/// A user that is there on every system, and a directory of its own that others can reach.
class AsNobody : public ::testing::Test {
 protected:
  void SetUp() override {
    if (geteuid() != 0) GTEST_SKIP() << "NOT RUN: needs root, to start a daemon as another user";
    const passwd* const user = getpwnam("nobody");
    if (user == nullptr) GTEST_SKIP() << "NOT RUN: there is no user 'nobody' here";
    uid_ = user->pw_uid;
    char name[] = "/tmp/kvhive-test-XXXXXX";
    directory_ = mkdtemp(name);
    chmod(directory_.c_str(), 0755);
  }
  void TearDown() override {
    if (!directory_.empty()) std::filesystem::remove_all(directory_);
  }
  std::string socket() const { return directory_ / "run" / "s"; }

  uid_t uid_ = 0;
  std::filesystem::path directory_;
};

TEST(Privilege, NoProcessHasACapabilityOrCanGetOne) {
  const Daemon daemon;
  for (const pid_t pid : processes_that_serve(daemon.socket())) {
    SCOPED_TRACE(status_of(pid, "Name"));
    for (const char* set : {"CapInh", "CapPrm", "CapEff", "CapAmb"})
      EXPECT_EQ(std::stoull(status_of(pid, set), nullptr, 16), 0u) << set;
    if (geteuid() == 0) {
      EXPECT_EQ(std::stoull(status_of(pid, "CapBnd"), nullptr, 16), 0u);
    }
    EXPECT_EQ(status_of(pid, "NoNewPrivs"), "1");
  }
}

TEST(Privilege, EveryProcessHasAFilterOfSystemCallsUnlessTheOperatorTurnsItOff) {
  if (kUnderSanitizer) GTEST_SKIP() << "NOT RUN: sanitizers make calls of their own";
  const std::string kFiltered = "2", kFree = "0";
  const Daemon filtered;
  for (const pid_t pid : processes_that_serve(filtered.socket()))
    EXPECT_EQ(status_of(pid, "Seccomp"), kFiltered) << status_of(pid, "Name");
  const Daemon free({"--kv-cache-memory-bytes", "8M", "--system-call-filter", "off"});
  for (const pid_t pid : processes_that_serve(free.socket()))
    EXPECT_EQ(status_of(pid, "Seccomp"), kFree) << status_of(pid, "Name");
}

TEST_F(AsNobody, ADaemonThatRootStartsServesAsThatUserAndRootCanInspectIt) {
  {
    const StartAttempt daemon({"--kv-cache-memory-bytes", "8M", "--socket", socket(), "--user",
                               "nobody", "--socket-access", "everybody"});
    ASSERT_TRUE(daemon.is_ready()) << daemon.words();
    for (const pid_t pid : processes_that_serve(socket())) {
      const std::string id = std::to_string(uid_);
      EXPECT_EQ(status_of(pid, "Uid"), id + "\t" + id + "\t" + id + "\t" + id);
    }
    auto client = Client::connect(client_options(socket()));
    ASSERT_TRUE(client.has_value()) << client.error().text;
    EXPECT_EQ(client->generate(request_of("In the beginning", 4))->tokens.size(), 4u);
    for (const char* command : {"stat", "fsck", "blocks"})
      EXPECT_EQ(run("kvhive", {"pool", command, "--socket", socket()}).exit_code, 0) << command;
    EXPECT_EQ(run("kvhive", {"pool", "fsck", "--repair", "--socket", socket()}).exit_code, 0);
    EXPECT_EQ(run("kvhive", {"stop", "--socket", socket()}).exit_code, 0);
  }
  EXPECT_FALSE(std::filesystem::exists(socket()));
}

/// Another group's file: without a capability, only a member of the group could make it.
TEST_F(AsNobody, TheSocketMayBelongToAGroupThatTheUserIsNotIn) {
  for (const std::string user : {"nobody", ""}) {
    SCOPED_TRACE(user);
    const gid_t group = 60'010;
    const std::string path = directory_ / ("group" + user) / "s";
    std::vector<std::string> flags = {
        "--kv-cache-memory-bytes",  "8M", "--socket", path, "--socket-access",
        "@" + std::to_string(group)};
    if (!user.empty()) flags.insert(flags.end(), {"--user", user});
    const StartAttempt daemon(flags);
    ASSERT_TRUE(daemon.is_ready()) << daemon.words();
    struct stat status {};
    ASSERT_EQ(stat(path.c_str(), &status), 0);
    EXPECT_EQ(status.st_gid, group);
  }
}

TEST_F(AsNobody, AnUnknownUserIsRefused) {
  const StartAttempt daemon({"--socket", socket(), "--user", "no-such-user"});
  EXPECT_FALSE(daemon.is_ready());
  EXPECT_THAT(daemon.words(), AllOf(HasSubstr("user: 'no-such-user'"), HasSubstr("useradd")));
}

TEST_F(AsNobody, AnEmptyNameIsRefusedAndANumberNeedsNoEntry) {
  const StartAttempt unset({"--socket", socket(), "--user", ""});
  EXPECT_THAT(unset.words(), AllOf(HasSubstr("user"), HasSubstr("is no user")));
  const StartAttempt number({"--kv-cache-memory-bytes", "8M", "--socket", socket(), "--user",
                             "60123", "--socket-access", "everybody"});
  ASSERT_TRUE(number.is_ready()) << number.words();
  EXPECT_THAT(status_of(number.pid(), "Uid"), HasSubstr("60123"));
  EXPECT_THAT(status_of(number.pid(), "Groups"), HasSubstr("60123"));
}

TEST_F(AsNobody, ThatUserCanLookAtThePoolWhileTheKeeperIsStopped) {
  const StartAttempt daemon(
      {"--kv-cache-memory-bytes", "8M", "--socket", socket(), "--user", "nobody"});
  ASSERT_TRUE(daemon.is_ready()) << daemon.words();
  ASSERT_EQ(kill(keeper_of(daemon.pid()), SIGSTOP), 0);
  const CommandResult stat = run("kvhive", {"pool", "stat", "--socket", socket()}, [this] {
    if (setgid(uid_) != 0 || setuid(uid_) != 0) _exit(126);
  });
  ASSERT_EQ(kill(keeper_of(daemon.pid()), SIGCONT), 0);
  EXPECT_EQ(stat.exit_code, 0) << stat.err;
}

TEST_F(AsNobody, AUserWhoIsNotRootCannotStartADaemonAsAnother) {
  const StartAttempt daemon({"--socket", socket(), "--user", "root"}, [this] {
    if (setgid(uid_) != 0 || setuid(uid_) != 0) _exit(126);
  });
  EXPECT_FALSE(daemon.is_ready());
  EXPECT_THAT(daemon.words(), AllOf(HasSubstr("user: 'root'"), HasSubstr("only root")));
}

/// Lets no process set a filter. Called between fork and exec.
void refuse_filters() {
  const scmp_filter_ctx outer = seccomp_init(SCMP_ACT_ALLOW);
  const scmp_arg_cmp is_filter = {0, SCMP_CMP_EQ, PR_SET_SECCOMP, 0};
  if (outer == nullptr ||
      seccomp_rule_add(outer, SCMP_ACT_ERRNO(EPERM), SCMP_SYS(seccomp), 0) != 0 ||
      seccomp_rule_add_array(outer, SCMP_ACT_ERRNO(EPERM), SCMP_SYS(prctl), 1, &is_filter) != 0 ||
      seccomp_load(outer) != 0)
    _exit(126);
}

std::vector<std::string> guest_flags(const Daemon& daemon, std::vector<std::string> more) {
  more.insert(more.end(), {"--model", kDemoModel, "--socket", daemon.socket(), "--threads", "1"});
  return more;
}

/// The engine's actors run already when it gets its filter.
TEST(EngineThatCannotServe, SaysWhyWhenItsFilterIsRefused) {
  if (kUnderSanitizer) GTEST_SKIP() << "NOT RUN: sanitizers make calls of their own";
  const Daemon daemon;
  for (int i = 0; i < 3; ++i) {
    const CommandResult guest =
        run("kvhive-engine", guest_flags(daemon, {"--system-call-filter", "on"}), refuse_filters);
    EXPECT_EQ(guest.exit_code, 1);
    EXPECT_THAT(guest.err, HasSubstr("kvhive-engine: system-call-filter: "));
  }
}

/// The keeper kills an engine that hangs up: not before it has said why.
TEST(EngineThatCannotServe, SaysWhyWhenItHasJoinedAlready) {
  if (kUnderSanitizer) GTEST_SKIP() << "NOT RUN: sanitizers leave mlock() out";
  if (geteuid() == 0 && capng_have_capability(CAPNG_EFFECTIVE, CAP_SYS_RESOURCE) != 0)
    GTEST_SKIP() << "NOT RUN: this root raises the limit of locked memory";
  const Daemon daemon;
  for (int i = 0; i < 5; ++i) {
    const CommandResult guest =
        run("kvhive-engine", guest_flags(daemon, {"--lock-metadata", "true"}), [] {
          const rlimit little{65536, 65536};
          setrlimit(RLIMIT_MEMLOCK, &little);
        });
    EXPECT_EQ(guest.exit_code, 1);
    EXPECT_THAT(guest.err, HasSubstr("limit of locked memory"));
  }
}

TEST(LockedMetadata, IsLockedByEngineAndSteward) {
  if (kUnderSanitizer) GTEST_SKIP() << "NOT RUN: sanitizers leave mlock() out";
  const Daemon daemon({"--kv-cache-memory-bytes", "8M", "--lock-metadata", "true"});
  const std::vector<pid_t> pids = processes_that_serve(daemon.socket());
  const auto locked_kib = [](pid_t pid) { return std::stoul(status_of(pid, "VmLck")); };
  EXPECT_EQ(locked_kib(pids[0]), 0u) << "the keeper maps nothing";
  for (const pid_t pid : {pids[1], pids[2]}) EXPECT_GT(locked_kib(pid), 64u);
}

TEST_F(AsNobody, MetadataBeyondTheLimitOfLockedMemoryIsRefusedWithNumbers) {
  const StartAttempt daemon(
      {"--kv-cache-memory-bytes", "8M", "--socket", socket(), "--lock-metadata", "true"}, [this] {
        const rlimit little{4096, 4096};
        setrlimit(RLIMIT_MEMLOCK, &little);
        if (mkdir((directory_ / "run").c_str(), 0755) != 0 ||
            chown((directory_ / "run").c_str(), uid_, uid_) != 0 || setgid(uid_) != 0 ||
            setuid(uid_) != 0)
          _exit(126);
      });
  EXPECT_FALSE(daemon.is_ready());
  EXPECT_THAT(daemon.words(), HasSubstr("ulimit -l) is 4.00 KiB, the pool's metadata has"));
}

}  // namespace
}  // namespace kvhive::testing
