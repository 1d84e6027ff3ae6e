// Daemons whose standard error is a pipe that nobody reads, or whose reader has gone. The log is at
// level info, and a hostile client causes lines as fast as it can.

#include <fcntl.h>
#include <gmock/gmock.h>

#include <cerrno>
#include <fstream>
#include <string>

#include "base/check.hpp"
#include "base/unique_fd.hpp"
#include "tests/support/temp_directory.hpp"
#include "tests/tools/daemon.hpp"

namespace kvhive::testing {
namespace {

using ::testing::HasSubstr;

constexpr int kBadHellos = 3000;

/// Says a hello that only the steward may say. True if the keeper refused it, which it also logs.
bool is_refused(const std::string& path) {
  const auto socket = connect_to_daemon(path);
  if (!socket || !send_packet(socket->get(), StewardHello{})) return false;
  const auto answer = receive_answer(socket->get(), 60'000);
  return answer && *answer && (*answer)->is(MessageType::refused);
}

/// Returns how many of the bad hellos were refused; ends with the first that was not.
int say_bad_hellos(const std::string& path) {
  int refused = 0;
  while (refused < kBadHellos && is_refused(path)) ++refused;
  return refused;
}

class StuckLog : public ::testing::Test {
 protected:
  StuckLog() {
    int ends[2];
    KV_CHECK(pipe2(ends, O_CLOEXEC) == 0);
    reader = UniqueFd(ends[0]);
    writer = UniqueFd(ends[1]);
  }
  ~StuckLog() override { reader = UniqueFd(); }  // before ~Daemon, should that wait for a reader

  /// Fills the pipe, so that not one more line has room.
  void fill() const {
    // Opened again: O_NONBLOCK must not be seen by the daemon, which has the same open file.
    const UniqueFd end{
        open(("/proc/self/fd/" + std::to_string(writer.get())).c_str(), O_WRONLY | O_NONBLOCK)};
    KV_CHECK(bool(end));
    for (const std::string piece(512, '.'); write(end.get(), piece.data(), piece.size()) > 0;) {
    }
    KV_CHECK(errno == EAGAIN, errno);
  }

  void expect_service_then_end() const {
    ASSERT_EQ(say_bad_hellos(daemon->socket()), kBadHellos);
    EXPECT_EQ(daemon->connect().generate(request_of("In the beginning", 8))->tokens.size(), 8u);
    signal_process(daemon->pid(), SIGTERM);
    EXPECT_TRUE(eventually([this] { return !is_alive(daemon->pid()); }, std::chrono::seconds(60)));
  }

  UniqueFd reader, writer;
  std::optional<Daemon> daemon;
};

TEST_F(StuckLog, APipeThatNobodyReadsKeepsNobodyWaiting) {
  daemon.emplace(std::vector<std::string>{"--kv-cache-memory-bytes", "8M", "--log-level", "info"},
                 [this] { dup2(writer.get(), STDERR_FILENO); });
  fill();
  expect_service_then_end();
}

TEST_F(StuckLog, APipeWhoseReaderHasGoneEndsNobody) {
  daemon.emplace(std::vector<std::string>{"--kv-cache-memory-bytes", "8M", "--log-level", "info"},
                 [this] { dup2(writer.get(), STDERR_FILENO); });
  reader = UniqueFd();
  expect_service_then_end();
}

TEST(LimitedLog, BadHellosAreAFewLinesThatCountTheOthers) {
  const TempDirectory directory;
  const Daemon daemon({"--kv-cache-memory-bytes", "8M", "--log-level", "info", "--log-file",
                       directory.path() / "log"});
  EXPECT_EQ(say_bad_hellos(daemon.socket()), kBadHellos);
  const auto refusals = [&] {
    std::ifstream log(directory.path() / "log");
    std::vector<std::string> lines;
    for (std::string line; std::getline(log, line);)
      if (line.find("refused pid") != std::string::npos) lines.push_back(line);
    return lines;
  };
  // Ten lines in ten seconds. A busy machine takes more than one period.
  EXPECT_TRUE(eventually([&] { return refusals().size() >= 10; }));
  EXPECT_LT(refusals().size(), kBadHellos / 10u);
  EXPECT_THAT(refusals().at(9), HasSubstr("more like it are left out for"));
}

}  // namespace
}  // namespace kvhive::testing
