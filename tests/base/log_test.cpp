// The log of a process: each test forks one, because a process starts its log once.

#include "base/log.hpp"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <filesystem>
#include <functional>

#include "base/check.hpp"
#include "base/unique_fd.hpp"
#include "tests/support/child_process.hpp"
#include "tests/support/temp_directory.hpp"

namespace kvhive::testing {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;

class LogTest : public ::testing::Test {
 protected:
  LogTest() {
    int ends[2];
    KV_CHECK(pipe2(ends, O_CLOEXEC) == 0);
    reader = UniqueFd(ends[0]);
    writer = UniqueFd(ends[1]);
  }

  /// Runs `body` in a process whose standard error is the pipe, and that ends by exit(3).
  int run(const std::function<void()>& body) {
    ChildProcess child([&] {
      dup2(writer.get(), STDERR_FILENO);
      reader = UniqueFd();
      writer = UniqueFd();
      body();
      std::exit(3);
    });
    const int status = child.wait();
    writer = UniqueFd();
    return status;
  }

  std::string written() const {
    std::string text;
    std::array<char, 4096> piece;
    for (ssize_t got; (got = read(reader.get(), piece.data(), piece.size())) > 0;)
      text.append(piece.data(), static_cast<std::size_t>(got));
    return text;
  }

  UniqueFd reader, writer;
};

void start(const std::string& path = {}) {
  const auto started = start_log("tester", "info", path);
  KV_CHECK(started.has_value(), started.error().text);
}

bool exited_with(int status, int code) { return WIFEXITED(status) && WEXITSTATUS(status) == code; }

/// Lines for 1 MiB and more, so that no pipe and no queue has room for them.
void log_much() {
  for (int i = 0; i < 100'000; ++i) spdlog::info("line {}", i);
}

TEST_F(LogTest, ExitWritesWhatIsQueued) {
  EXPECT_TRUE(exited_with(run([] {
                            start();
                            spdlog::debug("not seen");
                            spdlog::info("seen");
                          }),
                          3));
  EXPECT_THAT(written(), MatchesRegex("[0-9:.]+ info  [[]tester[]] seen\n"));
}

TEST_F(LogTest, AProcessEndsAlthoughNobodyReadsItsLog) {
  EXPECT_TRUE(exited_with(run([] {
                            start();
                            log_much();
                          }),
                          3));
  EXPECT_THAT(written(), HasSubstr("[tester] line 0\n"));
}

TEST_F(LogTest, AFailedCheckEndsAProcessWhoseLogNobodyReads) {
  const int status = run([] {
    start();
    log_much();
    KV_CHECK(1 + 1 == 3, "sum");
  });
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
}

TEST_F(LogTest, AFailedCheckComesAfterTheLinesBeforeIt) {
  const int status = run([] {
    start();
    spdlog::info("before");
    KV_CHECK(1 + 1 == 3, "sum");
  });
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
  EXPECT_THAT(written(), ContainsRegex("before\n.*log_test.cpp:[0-9]+: check failed: 1 [+] 1 == 3: "
                                       "sum\n"));
}

TEST_F(LogTest, ACriticalLineIsWrittenBeforeTheProcessEndsItself) {
  EXPECT_TRUE(exited_with(run([] {
                            start();
                            spdlog::info("before");
                            spdlog::critical("the reason");
                            _exit(4);
                          }),
                          4));
  EXPECT_THAT(written(), ContainsRegex("before\n.*critical [[]tester[]] the reason\n"));
}

TEST_F(LogTest, AnErrorLineComesAsItIsAfterTheLog) {
  (void)run([] {
    start();
    spdlog::info("before");
    print_error_line("tester: as it is");
    _exit(0);
  });
  EXPECT_THAT(written(), ContainsRegex("before\ntester: as it is\n"));
}

TEST_F(LogTest, AProcessLivesOnAfterItsLogsReaderHasGone) {
  reader = UniqueFd();
  EXPECT_TRUE(exited_with(run([] {
                            signal(SIGPIPE, SIG_DFL);
                            start();
                            log_much();
                            flush_log();
                          }),
                          3));
}

TEST_F(LogTest, ReopeningLeavesEarlierLinesInTheRenamedFile) {
  const TempDirectory directory;
  const std::string path = directory.path() / "log";
  EXPECT_TRUE(exited_with(run([&] {
                            start(path);
                            spdlog::info("early");
                            std::filesystem::rename(path, path + ".1");
                            KV_CHECK(reopen_log().has_value());
                            spdlog::info("late");
                          }),
                          3));
  EXPECT_THAT(directory.read("log.1"), MatchesRegex("[0-9-]+ [0-9:.]+ info  [[]tester [0-9]+[]] "
                                                    "early\n"));
  EXPECT_THAT(directory.read("log"), MatchesRegex(".*late\n"));
}

TEST_F(LogTest, ANamedPipeThatNobodyReadsIsRefusedAtOnce) {
  const TempDirectory directory;
  const std::string path = directory.path() / "pipe";
  ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
  const auto started = start_log("tester", "info", path);
  ASSERT_FALSE(started.has_value());
  EXPECT_THAT(started.error().text, HasSubstr("log-file: open " + path));
}

TEST_F(LogTest, ALineThatCannotBeMadeIsToldAndHarmsNothing) {
  EXPECT_TRUE(exited_with(run([] {
                            start();
                            spdlog::info(fmt::runtime("{} {}"), 1);
                            spdlog::info("after");
                          }),
                          3));
  EXPECT_THAT(written(), ContainsRegex("a log line could not be made: .*\n.*after\n"));
}

}  // namespace
}  // namespace kvhive::testing
