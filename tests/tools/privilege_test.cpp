// What the processes of a daemon may do, as the kernel reports it, and --user.

#include <gmock/gmock.h>
#include <pwd.h>
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
std::vector<pid_t> processes_of(const std::string& socket) {
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
  for (const pid_t pid : processes_of(daemon.socket())) {
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
  for (const pid_t pid : processes_of(filtered.socket()))
    EXPECT_EQ(status_of(pid, "Seccomp"), kFiltered) << status_of(pid, "Name");
  const Daemon free({"--kv-cache-memory-bytes", "8M", "--system-call-filter", "off"});
  for (const pid_t pid : processes_of(free.socket()))
    EXPECT_EQ(status_of(pid, "Seccomp"), kFree) << status_of(pid, "Name");
}

TEST_F(AsNobody, ADaemonThatRootStartsServesAsThatUserAndRootCanInspectIt) {
  {
    const StartAttempt daemon({"--kv-cache-memory-bytes", "8M", "--socket", socket(), "--user",
                               "nobody", "--socket-access", "everybody"});
    ASSERT_TRUE(daemon.is_ready()) << daemon.words();
    for (const pid_t pid : processes_of(socket())) {
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
    const StartAttempt daemon({"--kv-cache-memory-bytes", "8M", "--socket", path, "--user", user,
                               "--socket-access", "@" + std::to_string(group)});
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

TEST_F(AsNobody, AUserWhoIsNotRootCannotStartADaemonAsAnother) {
  const StartAttempt daemon({"--socket", socket(), "--user", "root"}, [this] {
    if (setgid(uid_) != 0 || setuid(uid_) != 0) _exit(126);
  });
  EXPECT_FALSE(daemon.is_ready());
  EXPECT_THAT(daemon.words(), AllOf(HasSubstr("user: 'root'"), HasSubstr("only root")));
}

TEST(LockedMetadata, IsLockedByEngineAndSteward) {
  if (kUnderSanitizer) GTEST_SKIP() << "NOT RUN: sanitizers leave mlock() out";
  const Daemon daemon({"--kv-cache-memory-bytes", "8M", "--lock-metadata", "true"});
  const std::vector<pid_t> pids = processes_of(daemon.socket());
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
