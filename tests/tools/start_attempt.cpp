#include "tests/tools/start_attempt.hpp"

#include <fcntl.h>
#include <poll.h>

#include <algorithm>

#include "base/check.hpp"
#include "tests/support/signal_process.hpp"

namespace kvhive::testing {
namespace {

constexpr int kHangMs = 60'000;

/// Appends the available bytes to `text`; false at the end of the stream.
bool read_some(int fd, std::string& text) {
  char piece[4096];
  const ssize_t got = read(fd, piece, sizeof piece);
  if (got > 0) text.append(piece, static_cast<std::size_t>(got));
  return got > 0;
}

}  // namespace

StartAttempt::StartAttempt(std::vector<std::string> flags, const BeforeExec& before_exec) {
  char name[] = "/tmp/kvhive-test-XXXXXX";
  KV_CHECK(mkdtemp(name) != nullptr);
  directory_ = name;
  socket_ = directory_ + "/s";
  if (const auto given = std::find(flags.begin(), flags.end(), "--socket"); given != flags.end())
    socket_ = *std::next(given);
  else
    flags.insert(flags.end(), {"--socket", socket_});
  flags.insert(flags.end(), {"--model", kDemoModel, "--log-level", "error", "--threads", "1"});
  int out[2], err[2];
  KV_CHECK(pipe2(out, O_CLOEXEC) == 0 && pipe2(err, O_CLOEXEC) == 0);
  pid_ = spawn(program("kvhived"), flags, out[1], err[1], before_exec);
  close(out[1]);
  close(err[1]);

  std::string said;
  pollfd ends[2] = {{out[0], POLLIN, 0}, {err[0], POLLIN, 0}};
  bool is_silent = false;
  while (!is_ready_ && (ends[0].fd >= 0 || ends[1].fd >= 0) && !is_silent) {
    is_silent = poll(ends, 2, kHangMs) == 0;
    if (ends[0].revents != 0 && !read_some(out[0], said)) ends[0].fd = -1;
    if (ends[1].revents != 0 && !read_some(err[0], words_)) ends[1].fd = -1;
    is_ready_ = said.find("ready") != std::string::npos;
  }
  close(out[0]);
  close(err[0]);
  EXPECT_FALSE(is_silent) << "neither ready nor an error: " << words_;
  if (is_ready_) return;
  int status = 0;
  if (is_silent) signal_process(pid_, SIGKILL);
  waitpid(pid_, &status, 0);
  pid_ = 0;
  expect_words(status);
}

StartAttempt::~StartAttempt() {
  if (pid_ != 0) {
    signal_process(pid_, SIGTERM);
    waitpid(pid_, nullptr, 0);
  }
  EXPECT_TRUE(eventually([this] { return std::filesystem::is_empty(directory_); },
                         std::chrono::seconds(60)));
  std::error_code ignored;
  std::filesystem::remove_all(directory_, ignored);
}

void StartAttempt::expect_words(int status) {
  EXPECT_TRUE(WIFEXITED(status)) << "ended by signal " << WTERMSIG(status) << ": " << words_;
  EXPECT_NE(WEXITSTATUS(status), 0);
  EXPECT_NE(words_.find("kvhived: "), std::string::npos) << "no word of the daemon in: " << words_;
}

}  // namespace kvhive::testing
