// `kvhive top` beside a real daemon: printed, and on a terminal with keys, signals and silent or
// dead processes.

#include <gmock/gmock.h>

#include "tests/tools/pseudo_terminal.hpp"

namespace kvhive::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

const std::string kEnter = "\033[?1049h", kLeave = "\033[?1049l";

/// The command line of a top that draws often.
std::vector<std::string> top_of(const std::string& socket, std::vector<std::string> more = {}) {
  std::vector<std::string> command = {program("kvhive"), "top", "--socket", socket,
                                      "--interval",      "0.1"};
  command.insert(command.end(), more.begin(), more.end());
  return command;
}

bool is_raw(const PseudoTerminal& terminal) { return (terminal.mode().c_lflag & ICANON) == 0; }

TEST(CliTop, PrintedItEndsAfterItsFrames) {
  const Daemon daemon;
  ASSERT_EQ(daemon.cli({"generate", "--prompt", passage(0, 1500), "--max-tokens", "4"}).exit_code,
            0);
  const Client client = daemon.connect();
  const CommandResult once = daemon.cli({"top"});
  EXPECT_EQ(once.exit_code, 0) << once.err;
  EXPECT_THAT(once.out, Not(HasSubstr("\033")));
  EXPECT_THAT(once.out, HasSubstr("0 serving"));
  EXPECT_THAT(once.out, HasSubstr("map by state"));
  EXPECT_THAT(once.out, HasSubstr(std::to_string(getpid()))) << "this test is a client";
  const CommandResult twice =
      daemon.cli({"top", "--count", "2", "--plain", "--interval", "0.1", "--by", "owner"});
  EXPECT_EQ(twice.exit_code, 0) << twice.err;
  const std::size_t second = twice.out.find("kvhive top", 1);
  ASSERT_NE(second, std::string::npos);
  EXPECT_EQ(twice.out.find("kvhive top", second + 1), std::string::npos);
  EXPECT_THAT(twice.out.substr(0, second), HasSubstr("prompt     -/s")) << "one reading is no rate";
  EXPECT_THAT(twice.out.substr(second), HasSubstr("prompt     0/s"));
  EXPECT_THAT(twice.out, HasSubstr("map by owner"));
}

TEST(CliTop, WithoutADaemonItSaysSo) {
  const CommandResult result = run("kvhive", {"top", "--socket", "/tmp/kvhive-none"});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.err, HasSubstr("no daemon listens on /tmp/kvhive-none"));
}

TEST(CliTop, BadValuesAreNamed) {
  EXPECT_THAT(run("kvhive", {"top", "--interval", "0"}).err, HasSubstr("--interval"));
  EXPECT_THAT(run("kvhive", {"--format", "json", "top"}).err, HasSubstr("--format json"));
}

TEST(CliTopOnATerminal, KeysChangeWhatIsShownAndQGivesTheTerminalBack) {
  const Daemon daemon;
  PseudoTerminal terminal(top_of(daemon.socket()), 100, 30);
  ASSERT_TRUE(terminal.shows(kEnter));
  ASSERT_TRUE(terminal.shows("[1 engines]"));
  EXPECT_TRUE(is_raw(terminal));
  terminal.type("2");
  EXPECT_TRUE(terminal.shows("[2 domains]"));
  terminal.type("4");
  EXPECT_TRUE(terminal.shows("[4 map]"));
  terminal.type("b");
  EXPECT_TRUE(terminal.shows("map by owner"));
  terminal.type("1/serving\r");
  EXPECT_TRUE(terminal.shows("only 'serving'"));
  terminal.type("\033p");
  EXPECT_TRUE(terminal.shows("PAUSED"));
  terminal.type("?");
  EXPECT_TRUE(terminal.shows("kvhive top: keys"));
  terminal.type(" q");
  EXPECT_EQ(terminal.wait_for_end(), 0) << terminal.printed();
  EXPECT_THAT(terminal.printed(), HasSubstr(kLeave));
  EXPECT_FALSE(is_raw(terminal));
}

TEST(CliTopOnATerminal, FollowsTheTerminalsSize) {
  const Daemon daemon;
  PseudoTerminal terminal(top_of(daemon.socket()), 100, 30);
  ASSERT_TRUE(terminal.shows("\033[30;1H"));
  terminal.resize(120, 45);
  EXPECT_TRUE(terminal.shows("\033[45;1H"));
  terminal.resize(30, 5);
  EXPECT_TRUE(terminal.shows("kvhive top needs 40 x 10"));
  terminal.resize(80, 24);
  EXPECT_TRUE(terminal.shows("\033[24;1H"));
  terminal.type("q");
  EXPECT_EQ(terminal.wait_for_end(), 0);
}

TEST(CliTopOnATerminal, CountEndsIt) {
  const Daemon daemon;
  PseudoTerminal terminal(top_of(daemon.socket(), {"--count", "2"}), 80, 24);
  EXPECT_EQ(terminal.wait_for_end(), 0);
  EXPECT_THAT(terminal.printed(), HasSubstr(kEnter));
  EXPECT_THAT(terminal.printed(), HasSubstr(kLeave));
}

/// However it ends, the terminal is as it was, and the status says what ended it.
TEST(CliTopOnATerminal, SignalsAndCrashesGiveTheTerminalBack) {
  const Daemon daemon;
  for (const int signal : {SIGTERM, SIGHUP, SIGQUIT, SIGSEGV, SIGABRT}) {
    PseudoTerminal terminal(top_of(daemon.socket()), 80, 24);
    ASSERT_TRUE(terminal.shows("[1 engines]"));
    signal_process(terminal.pid(), signal);
    const int status = terminal.wait_for_end();
    EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == signal) << signal << ": " << status;
    EXPECT_THAT(terminal.printed(), HasSubstr(kLeave)) << signal;
    EXPECT_THAT(terminal.printed(), HasSubstr("\033[?25h")) << "the cursor is back";
    EXPECT_FALSE(is_raw(terminal)) << signal;
  }
}

TEST(CliTopOnATerminal, CtrlCEndsIt) {
  const Daemon daemon;
  PseudoTerminal terminal(top_of(daemon.socket()), 80, 24);
  ASSERT_TRUE(terminal.shows("[1 engines]"));
  terminal.type("\x03");
  EXPECT_EQ(terminal.wait_for_end(), 0);
  EXPECT_FALSE(is_raw(terminal));
}

/// As under a shell with job control: Ctrl-Z stops it with the terminal as it was, and it draws the
/// whole screen again when it goes on.
TEST(CliTopOnATerminal, StopsAndGoesOn) {
  const Daemon daemon;
  int told[2], order[2];
  ASSERT_EQ(pipe(told), 0);
  ASSERT_EQ(pipe(order), 0);
  // The terminal's first process plays the shell; its child, in a group of its own, is the job.
  PseudoTerminal terminal({"/bin/false"}, 80, 24, [&] {
    const pid_t job = fork();
    if (job == 0) {
      setpgid(0, 0);
      signal(SIGTTOU, SIG_IGN);
      tcsetpgrp(STDIN_FILENO, getpid());
      signal(SIGTTOU, SIG_DFL);
      std::vector<std::string> words = top_of(daemon.socket());
      std::vector<char*> argv;
      for (std::string& word : words) argv.push_back(word.data());
      argv.push_back(nullptr);
      execv(argv[0], argv.data());
      _exit(127);
    }
    int status = 0;
    waitpid(job, &status, WUNTRACED);
    (void)!write(told[1], WIFSTOPPED(status) ? "s" : "e", 1);
    char byte;
    (void)!read(order[0], &byte, 1);
    kill(job, SIGCONT);
    waitpid(job, &status, 0);
    _exit(WIFEXITED(status) ? WEXITSTATUS(status) : 99);
  });
  ASSERT_TRUE(terminal.shows("[1 engines]"));
  terminal.type("\x1a");
  ASSERT_TRUE(terminal.shows(kLeave));
  char state = 0;
  ASSERT_EQ(read(told[0], &state, 1), 1);
  EXPECT_EQ(state, 's') << "it is stopped, as the shell sees it";
  EXPECT_FALSE(is_raw(terminal));
  ASSERT_EQ(write(order[1], "c", 1), 1);
  EXPECT_TRUE(terminal.shows(kEnter));
  EXPECT_TRUE(terminal.shows("[1 engines]"));
  EXPECT_TRUE(is_raw(terminal));
  terminal.type("q");
  EXPECT_EQ(terminal.wait_for_end(), 0);
  for (const int fd : {told[0], told[1], order[0], order[1]}) close(fd);
}

TEST(CliTopOnATerminal, AKilledEngineIsShown) {
  const Daemon daemon;
  PseudoTerminal terminal(top_of(daemon.socket()), 100, 30);
  ASSERT_TRUE(terminal.shows("0 serving"));
  const pid_t pid = daemon.engine(0)["pid"];
  signal_process(pid, SIGSTOP);
  EXPECT_TRUE(terminal.shows("0 ! stopped"));
  signal_process(pid, SIGKILL);
  EXPECT_TRUE(terminal.shows("0 serving")) << "its successor";
  EXPECT_TRUE(eventually([&] { return daemon.status()["engines"][0]["restarts"] == 1; }));
  terminal.type("q");
  EXPECT_EQ(terminal.wait_for_end(), 0);
}

/// Frames are drawn on time, of a pool that goes on working.
TEST(CliTopOnATerminal, DrawsWhileTheKeeperIsStopped) {
  const Daemon daemon;
  Client client = daemon.connect();
  PseudoTerminal terminal(top_of(daemon.socket()), 100, 30);
  ASSERT_TRUE(terminal.shows("[1 engines]"));
  const pid_t keeper = daemon.keeper();
  signal_process(keeper, SIGSTOP);
  EXPECT_TRUE(terminal.shows("NOT ANSWERING"));
  EXPECT_TRUE(terminal.shows("is stopped (kill -CONT " + std::to_string(keeper) + ")"));
  std::vector<Client> clients;
  clients.push_back(std::move(client));
  (void)generate_all(clients, {request_of(passage(0, 1500), 4)});
  EXPECT_TRUE(terminal.shows("hits")) << "counted while the keeper was stopped";
  terminal.type("2");
  EXPECT_TRUE(terminal.shows("[2 domains]"));
  signal_process(keeper, SIGCONT);
  EXPECT_TRUE(terminal.shows("up 0:")) << terminal.printed();
  EXPECT_TRUE(terminal.shows("q quit"));
  terminal.type("q");
  EXPECT_EQ(terminal.wait_for_end(), 0);
}

TEST(CliTopOnATerminal, StartsWhileTheKeeperIsStopped) {
  const Daemon daemon;
  const pid_t keeper = daemon.keeper();
  signal_process(keeper, SIGSTOP);
  ASSERT_TRUE(eventually([&] { return state_of(keeper) == 'T'; }));
  PseudoTerminal terminal(top_of(daemon.socket()), 100, 30);
  EXPECT_TRUE(terminal.shows("NOT ANSWERING"));
  EXPECT_TRUE(terminal.shows("0 unknown"));
  signal_process(keeper, SIGCONT);
  EXPECT_TRUE(terminal.shows("0 serving"));
  terminal.type("q");
  EXPECT_EQ(terminal.wait_for_end(), 0);
}

TEST(CliTopOnATerminal, WaitsForTheNextDaemon) {
  auto daemon = std::make_unique<Daemon>();
  const std::string socket = daemon->socket(), directory = daemon->directory();
  PseudoTerminal terminal(top_of(socket), 100, 30);
  ASSERT_TRUE(terminal.shows("0 serving"));
  const std::string first = std::to_string(daemon->keeper());
  daemon->stop();
  EXPECT_TRUE(terminal.shows("kvhived has ended"));
  terminal.type("2");
  EXPECT_TRUE(terminal.shows("[2 domains]")) << "keys work meanwhile";
  terminal.type("1");
  const pid_t next =
      spawn(program("kvhived"), {"--model", kDemoModel, "--socket", socket, "--engines", "3",
                                 "--kv-cache-memory-bytes", "16M", "--log-level", "off"});
  EXPECT_TRUE(terminal.shows("2 serving")) << "the other daemon's third engine";
  terminal.type("q");
  EXPECT_EQ(terminal.wait_for_end(), 0);
  signal_process(next, SIGTERM);
  waitpid(next, nullptr, 0);
}

}  // namespace
}  // namespace kvhive::testing
