// kvhived --detach and the daemon's log: what the user sees, and what the log
// file says.

#include <fcntl.h>
#include <gmock/gmock.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>

#include <fstream>
#include <sstream>
#include <utility>

#include "base/check.hpp"
#include "base/unique_fd.hpp"
#include "tests/support/temp_directory.hpp"
#include "tests/support/signal_process.hpp"
#include "tests/tools/daemon.hpp"
#include "tests/tools/footprint.hpp"

namespace kvhive::testing {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::string content_of(const std::filesystem::path& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

/// Waits until the file has a line that matches; its content then, or after a
/// minute.
std::string wait_for(const std::filesystem::path& path, const std::string& regex) {
  const ::testing::Matcher<std::string> matches = ContainsRegex(regex);
  eventually([&] { return matches.Matches(content_of(path)); }, kHang);
  return content_of(path);
}

/// Reads until every writer has closed the pipe; nothing if one keeps it open
/// for a minute.
std::optional<std::string> read_to_end(int fd) {
  std::string text;
  pollfd ready{fd, POLLIN, 0};
  char piece[4096];
  while (poll(&ready, 1, 60'000) > 0) {
    const ssize_t got = read(fd, piece, sizeof piece);
    if (got <= 0) return text;
    text.append(piece, static_cast<std::size_t>(got));
  }
  return std::nullopt;
}

/// A daemon started with --detach in a directory of its own; stopped with the
/// test.
class DetachedTest : public ::testing::Test {
 protected:
  ~DetachedTest() override { (void)run("kvhive", {"stop", "--socket", socket()}); }

  std::string socket() const { return directory.path() / "s"; }
  std::filesystem::path default_log() const {
    return directory.path() / "state/kvhive/kvhived.log";
  }

  /// Starts the daemon as a shell does, and reads what the shell would see. `out` and `err` end
  /// when no process has them open.
  void start(std::vector<std::string> flags) {
    flags.insert(flags.end(), {"--detach", "--model", kDemoModel, "--socket", socket(), "--threads",
                               "1", "--kv-cache-memory-bytes", "8M"});
    int out_pipe[2], err_pipe[2];
    KV_CHECK(pipe2(out_pipe, O_CLOEXEC) == 0 && pipe2(err_pipe, O_CLOEXEC) == 0);
    const UniqueFd out_end(out_pipe[0]), err_end(err_pipe[0]);
    const pid_t pid = spawn(program("kvhived"), flags, out_pipe[1], err_pipe[1], [this] {
      setenv("XDG_STATE_HOME", (directory.path() / "state").c_str(), 1);
    });
    close(out_pipe[1]);
    close(err_pipe[1]);
    out = read_to_end(out_end.get());
    err = read_to_end(err_end.get());
    int status = 0;
    waitpid(pid, &status, 0);
    exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }

  TempDirectory directory;
  std::optional<std::string> out, err;
  int exit_code = -1;
};

TEST_F(DetachedTest, ReturnsWithTheReadyLineAndKeepsNoStreamOpen) {
  start({});
  ASSERT_TRUE(out.has_value() && err.has_value()) << "the daemon keeps the shell's pipe open";
  EXPECT_EQ(*out, "kvhived: ready on " + socket() + " (1 engine)\n");
  EXPECT_THAT(*err, IsEmpty());
  EXPECT_EQ(exit_code, 0);
  EXPECT_EQ(run("kvhive", {"pool", "stat", "--socket", socket()}).exit_code, 0);
}

TEST_F(DetachedTest, LogsWithDateNameAndPidUnderTheStateDirectory) {
  start({});
  const CommandResult status =
      run("kvhive", {"pool", "procs", "--socket", socket(), "--format", "json"});
  const std::string pid = status.json()["keeper"]["pid"].dump();
  const std::string date = "[0-9]{4}-[0-9]{2}-[0-9]{2} [0-9:]{8}[.][0-9]{3} ";
  const std::string log = content_of(default_log());
  EXPECT_THAT(log, ContainsRegex(date + "info  [[]kvhived " + pid + "[]] starting"));
  EXPECT_THAT(log, ContainsRegex(date + "info  [[]engine 0 [0-9]+[]] serving"));
}

TEST_F(DetachedTest, TheReasonOfAFailedStartReachesTheTerminalAndTheLog) {
  start({"--max-model-len", "100000"});
  EXPECT_EQ(exit_code, 1);
  ASSERT_TRUE(out.has_value() && err.has_value());
  EXPECT_THAT(*out, IsEmpty());
  EXPECT_THAT(*err, HasSubstr("kvhived: max-model-len"));
  EXPECT_THAT(content_of(default_log()), HasSubstr("max-model-len"));
}

/// Ends the process that started the daemon, as Ctrl-C does: the daemon has a session of its own
/// and gets no signal. False = the daemon was ready before.
bool interrupt_start(pid_t starter) {
  std::vector<pid_t> daemons;
  while (is_alive(starter) && (daemons = children_of(starter)).empty()) {
  }
  if (!daemons.empty()) kill(daemons.front(), SIGSTOP);
  kill(starter, SIGINT);
  int status = 0;
  KV_CHECK(waitpid(starter, &status, 0) == starter);
  if (!daemons.empty()) kill(daemons.front(), SIGCONT);
  return WIFSIGNALED(status);
}

TEST_F(DetachedTest, IsStoppedIfWhoStartedItEndsBeforeItIsReady) {
  const std::string log = directory.path() / "log";
  const std::vector<std::string> flags = {
      "--detach",  "--model", kDemoModel,   "--socket", socket(),
      "--threads", "1",       "--log-file", log,        "--kv-cache-memory-bytes",
      "8M"};
  while (!interrupt_start(spawn(program("kvhived"), flags)))
    (void)run("kvhive", {"stop", "--socket", socket()});
  EXPECT_THAT(wait_for(log, "has ended"), HasSubstr("has ended (Ctrl-C?)"));
  EXPECT_TRUE(eventually([&] { return !std::filesystem::exists(socket()); }));
}

TEST_F(DetachedTest, ALogFileThatCannotBeOpenedIsAnErrorOnTheTerminal) {
  start({"--log-file", "/nonexistent/directory/log"});
  EXPECT_EQ(exit_code, 1);
  ASSERT_TRUE(err.has_value());
  EXPECT_THAT(*err, HasSubstr("log-file: open /nonexistent/directory/log"));
}

/// Who connects first must not get a descriptor that is taken for one of the front's.
TEST_F(DetachedTest, NoConnectionIsLostWhenItsKeeperIsKilled) {
  start({});
  std::vector<UniqueFd> connections;
  for (int i = 0; i < 6; ++i) connections.push_back(std::move(*connect_to_daemon(socket())));
  const CommandResult status =
      run("kvhive", {"pool", "procs", "--socket", socket(), "--format", "json"});
  signal_process(status.json()["keeper"]["pid"], SIGKILL);
  for (const UniqueFd& connection : connections) {
    ASSERT_TRUE(send_packet(connection.get(), StatusRequest{7}));
    const auto told = receive_answer(connection.get());
    EXPECT_TRUE(told && *told && (*told)->is(MessageType::status));
  }
}

// -- the log of a daemon in the foreground --------------------------------------------------------

class LoggedDaemon : public ::testing::Test {
 protected:
  std::filesystem::path log() const { return directory.path() / "log"; }

  TempDirectory directory;
  Daemon daemon{{"--engines", "2", "--kv-cache-memory-bytes", "16M", "--log-file", log(),
                 "--log-level", "info"}};
};

/// The file that a process has as its standard error.
std::string standard_error_of(const Json& pid) {
  std::error_code gone;
  return std::filesystem::read_symlink("/proc/" + pid.dump() + "/fd/2", gone).string();
}

TEST_F(LoggedDaemon, SighupReopensTheFileInEveryProcessAndDoesNothingElse) {
  std::filesystem::rename(log(), directory.path() / "old");
  signal_process(daemon.pid(), SIGHUP);
  EXPECT_THAT(wait_for(log(), "log file reopened"), HasSubstr("SIGHUP"));
  const Json status = daemon.status();
  for (const Json& pid : {status["keeper"]["pid"], status["steward"]["pid"],
                          status["engines"][0]["pid"], status["engines"][1]["pid"]})
    EXPECT_TRUE(eventually([&] { return standard_error_of(pid) == log(); }, kHang)) << pid;
  EXPECT_EQ(daemon.status()["steward"]["restarts"], 0);
  EXPECT_EQ(daemon.status()["engines"][0]["restarts"], 0);
  EXPECT_EQ(daemon.status()["engines"][1]["restarts"], 0);
}

TEST_F(LoggedDaemon, ADeathSaysWhichEngineHowItEndedWhereItsChannelsWentAndWhenItRestarts) {
  Client client = daemon.connect(kAnyEngine);
  GenerateRequest request;
  request.prompt = "In the beginning";
  request.max_tokens = 2500;
  request.ignore_eos = true;
  constexpr std::uint32_t victim = 0;
  const std::string pid = std::to_string(daemon.pid_of(victim));
  // One for each engine. They take requests in turn, but one that gets no processor has its turn
  // taken by the other.
  const auto submit = [&] {
    const RequestId id = *client.submit(request);
    Progress news;
    EXPECT_TRUE(eventually([&] { return !(news = *client.read(id)).tokens.empty(); }, kHang));
    return std::pair(id, news.engine);
  };
  const auto first = submit();
  ASSERT_TRUE(eventually(
      [&] {
        const auto second = submit();
        if (second.second == first.second) client.abort(second.first);
        return second.second != first.second;
      },
      kHang));
  EXPECT_EQ(daemon.status()["clients"][0]["engines"], Json({0, 1}));
  signal_process(std::stoi(pid), SIGKILL);
  const std::string name = "engine " + std::to_string(victim);
  const std::string text = wait_for(log(), name + " started: pid [0-9]+, start 2");
  EXPECT_THAT(text, HasSubstr(name + " (pid " + pid + ") ended: signal 9"));
  EXPECT_THAT(text, HasSubstr("1 channels: 1 go on, 0 waiting for an engine"));
  EXPECT_THAT(wait_for(log(), "slot [0-9]+ of " + name + ".* swept"),
              HasSubstr(name + " (pid " + pid + ") swept: 1 requests under way"));
  EXPECT_THAT(text, ContainsRegex(name + ": start 2 follows in [0-9]+ ms"));
}

TEST_F(LoggedDaemon, AnEngineStartedByHandIsALineWhenItComesAndWhenItGoes) {
  const pid_t guest = spawn(program("kvhive-engine"),
                            {"--model", kDemoModel, "--socket", daemon.socket(), "--threads", "1",
                             "--log-level", "error"},
                            -1, -1);
  const std::string name = "engine 2 .pid " + std::to_string(guest) + ".";
  const std::string joined = name + " joined, slot [0-9]+; it was started by hand";
  EXPECT_THAT(wait_for(log(), joined), ContainsRegex(joined));
  EXPECT_EQ(content_of("/proc/" + std::to_string(guest) + "/comm"), "kvhive-engine\n");
  signal_process(guest, SIGKILL);
  EXPECT_THAT(wait_for(log(), name + " is gone"), ContainsRegex(name + " is gone"));
  waitpid(guest, nullptr, 0);
}

TEST_F(LoggedDaemon, AStopSaysWhichSignalCameFromWhichProgram) {
  EXPECT_EQ(daemon.cli({"stop"}).exit_code, 0);
  EXPECT_THAT(content_of(log()), ContainsRegex("stopping: SIGTERM from pid [0-9]+ [(]kvhive[)]"));
  EXPECT_THAT(content_of(log()), ContainsRegex("kvhived [0-9]+[]] stopped"));
}

TEST_F(LoggedDaemon, AKilledDaemonIsLoggedByItsSteward) {
  const std::string pid = std::to_string(daemon.pid());
  daemon.kill();
  EXPECT_THAT(wait_for(log(), "steward [0-9]+[]] the daemon"),
              HasSubstr("the daemon (pid " + pid + ") ended without stopping its children"));
}

TEST_F(LoggedDaemon, ARequestHasAnIdInDebugLines) {
  Daemon talkative({"--kv-cache-memory-bytes", "8M", "--log-file", log().string() + "2",
                    "--log-level", "debug"});
  EXPECT_EQ(talkative.cli({"generate", "--prompt", "In the", "--max-tokens", "2"}).exit_code, 0);
  const std::string text = wait_for(log().string() + "2", "request [0-9]+/[0-9]+ ended");
  EXPECT_THAT(text, ContainsRegex("engine 0 [0-9]+[]] request [0-9]+/[0-9]+ accepted"));
}

TEST(Foreground, ALogPipeWithoutAReaderDoesNotEndTheDaemon) {
  TempDirectory directory;
  int ends[2];
  KV_CHECK(pipe2(ends, O_CLOEXEC) == 0);
  UniqueFd read_end(ends[0]), write_end(ends[1]);
  Daemon daemon({"--kv-cache-memory-bytes", "8M", "--log-level", "info"},
                [&] { dup2(write_end.get(), STDERR_FILENO); });
  read_end = UniqueFd();
  signal_process(daemon.engine(0)["pid"], SIGKILL);  // the keeper logs the death
  EXPECT_TRUE(eventually([&] { return daemon.status()["engines"][0]["restarts"] == 1; }, kHang));
  EXPECT_TRUE(is_alive(daemon.pid()));
}

}  // namespace
}  // namespace kvhive::testing
