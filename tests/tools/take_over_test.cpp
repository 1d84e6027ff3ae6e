// kvhived --take-over where something is not as it should be: the daemon goes on as it is. And what
// the system says may have changed since the daemon was started.

#include <gmock/gmock.h>
#include <sched.h>
#include <sys/mount.h>

#include <fstream>

#include "ipc/questions.hpp"
#include "tests/support/temp_directory.hpp"
#include "tests/tools/daemon.hpp"
#include "tests/tools/other_programs.hpp"
#include "tools/keeper/succession/ledger.hpp"

namespace kvhive::testing {
namespace {

using ::testing::HasSubstr;

Expected<Packet> order_take_over(const Daemon& daemon, const std::string& program) {
  const UniqueFd asker = std::move(*connect_to_daemon(daemon.socket()));
  EXPECT_TRUE(say_hello(asker.get(), InspectorHello{layout_hash({}), 0}));
  return ask_keeper<Done>(asker.get(), Order{1, Order::What::take_over, 0, 0, kLedgerVersion},
                          Json{{"program", program}}.dump());
}

bool serves(const Daemon& daemon) {
  return daemon.connect().generate(request_of("And", 4))->tokens.size() == 4;
}

TEST(TakeOverRefused, OfAnInstallationThatIsNotWhole) {
  const TempDirectory directory;
  std::filesystem::copy_file(program("kvhived"), directory.path() / "kvhived");
  const Daemon daemon;
  const auto take_over = [&] {
    const std::string words = directory.path() / "words";
    const pid_t asker =
        spawn(directory.path() / "kvhived", {"--take-over", "--socket", daemon.socket()}, -1,
              open(words.c_str(), O_CREAT | O_TRUNC | O_WRONLY | O_CLOEXEC, 0600));
    waitpid(asker, nullptr, 0);
    std::ostringstream text;
    text << std::ifstream(words).rdbuf();
    return text.str();
  };
  EXPECT_THAT(take_over(), HasSubstr("kvhive-steward --version says ''"));
  std::filesystem::copy_file(program("kvhive-steward"), directory.path() / "kvhive-steward");
  std::filesystem::copy_file(program("kvhive"), directory.path() / "kvhive-engine");
  EXPECT_THAT(take_over(), HasSubstr("install all programs together"));
  EXPECT_TRUE(serves(daemon));
}

TEST(TakeOverRefused, WhileTheFrontIsStopped) {
  const Daemon daemon;
  signal_process(daemon.pid(), SIGSTOP);
  ASSERT_TRUE(eventually([&] { return state_of(daemon.pid()) == 'T'; }));
  const auto refused = run("kvhived", {"--take-over", "--socket", daemon.socket()});
  EXPECT_EQ(refused.exit_code, 1);
  EXPECT_THAT(refused.err, HasSubstr("process " + std::to_string(daemon.pid())));
  EXPECT_THAT(refused.err, HasSubstr("kill -CONT"));
  EXPECT_TRUE(serves(daemon));
  signal_process(daemon.pid(), SIGCONT);
}

TEST(TakeOverRefused, OfNoWholePathOrOneThatIsTooLong) {
  const Daemon daemon;
  for (const std::string& program :
       {std::string(), std::string("kvhived"), "/" + std::string(131'030, 'x')}) {
    const auto refused = order_take_over(daemon, program);
    ASSERT_FALSE(refused.has_value());
    EXPECT_THAT(refused.error().text, HasSubstr("whole path"));
  }
  EXPECT_TRUE(serves(daemon));
}

/// It sees itself under the name of the file.
TEST(TakeOver, OfAProgramThatIsNamedByALink) {
  const TempDirectory directory;
  const auto link = directory.path() / "link";
  std::filesystem::create_symlink(program("kvhived"), link);
  const Daemon daemon;
  const auto done = order_take_over(daemon, link);
  ASSERT_TRUE(done.has_value()) << done.error().text;
  EXPECT_TRUE(serves(daemon));
}

/// A user that the daemon's rules name is deleted.
TEST(TakeOver, NeedsNoUserThatTheSystemStillKnows) {
  if (geteuid() != 0) GTEST_SKIP() << "NOT RUN: needs root, for a list of users of its own";
  const TempDirectory directory;
  const std::string users = directory.path() / "passwd";
  std::ofstream(users) << "root:x:0:0::/root:/bin/sh\nkvalice:x:60077:60077::/:/bin/false\n";
  const Daemon daemon(
      {"--engines", "1", "--kv-cache-memory-bytes", "8M", "--domains", "team=kvalice"}, [&] {
        if (unshare(CLONE_NEWNS) != 0 ||
            mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
            mount(users.c_str(), "/etc/passwd", nullptr, MS_BIND, nullptr) != 0)
          _exit(77);
      });
  std::ofstream(users) << "root:x:0:0::/root:/bin/sh\n";
  const auto taken = run("kvhived", {"--take-over", "--socket", daemon.socket()});
  EXPECT_EQ(taken.exit_code, 0) << taken.err;
  EXPECT_TRUE(serves(daemon));
  daemon.kill_keeper();
  EXPECT_TRUE(serves(daemon));
}

}  // namespace
}  // namespace kvhive::testing
