// What a LogWriter does when its descriptor takes nothing, takes lines again, or is gone. No test
// waits for a clock, except for the limits of flush().

#include "base/logging/log_writer.hpp"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <functional>
#include <thread>
#include <vector>

#include "base/check.hpp"
#include "base/unique_fd.hpp"
#include "tests/support/temp_directory.hpp"

namespace kvhive::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;

struct Pipe {
  Pipe() {
    int ends[2];
    KV_CHECK(pipe2(ends, O_CLOEXEC) == 0);
    reader = UniqueFd(ends[0]);
    writer = UniqueFd(ends[1]);
  }
  UniqueFd reader, writer;
};

std::unique_ptr<LogWriter> start_writer(int fd, std::size_t bytes = LogWriter::kUsualBytes) {
  auto writer =
      LogWriter::start(fd, bytes, [](const std::string& text) { return "log: " + text + '\n'; });
  KV_CHECK(writer.has_value(), writer.error().text);
  return std::move(*writer);
}

std::string numbered(std::size_t i) { return "line " + std::to_string(i) + " of many\n"; }

/// Reads lines from `fd` until `is_last` says so, or the end of the file.
std::vector<std::string> read_lines(int fd,
                                    const std::function<bool(const std::string&)>& is_last) {
  std::vector<std::string> lines(1);
  std::array<char, 4096> piece;
  for (ssize_t got; (got = read(fd, piece.data(), piece.size())) > 0;) {
    for (const char letter : std::string_view(piece.data(), static_cast<std::size_t>(got))) {
      if (letter != '\n') {
        lines.back() += letter;
        continue;
      }
      if (is_last(lines.back())) return lines;
      lines.emplace_back();
    }
  }
  lines.pop_back();
  return lines;
}

/// The last line of a test. All lines are read before a writer ends: a stuck thread outlives its
/// writer, and would write into the descriptor of a later test.
const std::string kEnd = "the end";

std::vector<std::string> read_to_end_line(int fd) {
  return read_lines(fd, [](const std::string& line) { return line == kEnd; });
}

std::size_t count_in(const std::string& line) {
  return static_cast<std::size_t>(std::stoull(line.substr(line.find(' ') + 1)));
}

TEST(LogWriter, WritesLinesInTheirOrder) {
  Pipe pipe;
  const auto writer = start_writer(pipe.writer.get());
  writer->push("one\n");
  writer->push("two\n");
  EXPECT_TRUE(writer->flush());
  EXPECT_THAT(read_lines(pipe.reader.get(), [](const auto& line) { return line == "two"; }),
              ElementsAre("one", "two"));
}

TEST(LogWriter, AStuckReaderCostsLinesWhichAreCountedWhereTheyWouldHaveBeen) {
  constexpr std::size_t kLines = 100'000;
  Pipe pipe;
  const auto writer = start_writer(pipe.writer.get());
  for (std::size_t i = 0; i < kLines; ++i) writer->push(numbered(i));  // returns: nobody reads
  writer->push(kEnd + '\n', LogWriter::Admission::always);

  std::size_t next = 0;
  for (const std::string& line : read_to_end_line(pipe.reader.get())) {
    if (line.rfind("log:", 0) == 0) {
      ASSERT_THAT(line, MatchesRegex("log: [0-9]+ log lines? (was|were) dropped: standard error "
                                     "was not read fast enough"));
      next += count_in(line);
    } else if (line != kEnd) {
      ASSERT_EQ(line + '\n', numbered(next++));
    }
  }
  EXPECT_EQ(next, kLines);
}

TEST(LogWriter, ALineThatSaysWhyAProcessEndsFindsRoomInAFullQueue) {
  Pipe pipe;
  const auto writer = start_writer(pipe.writer.get(), 4096);
  const std::string line = std::string(999, 'x') + '\n';
  for (int i = 0; i < 10'000; ++i) writer->push(line);
  writer->push(kEnd + '\n', LogWriter::Admission::always);
  const auto lines = read_to_end_line(pipe.reader.get());
  // The queue is bounded: the pipe has 64 KiB, and the two halves of the queue 4 KiB. Until the
  // pipe is full, the thread may write more, and count dropped lines more than once.
  EXPECT_LE(std::count(lines.begin(), lines.end(), line.substr(0, 999)), 72);
  EXPECT_THAT(lines.at(lines.size() - 2), HasSubstr("dropped"));
}

TEST(LogWriter, AReaderThatIsGoneCostsLinesAndNotTheProcess) {
  Pipe pipe;
  ASSERT_NE(signal(SIGPIPE, SIG_DFL), SIG_ERR);  // the writer must not rest on it being ignored
  pipe.reader = UniqueFd();
  const auto writer = start_writer(pipe.writer.get());
  for (std::size_t i = 0; i < 1000; ++i) writer->push(numbered(i));
  EXPECT_TRUE(writer->flush()) << "a line that is lost is done";

  Pipe other;
  ASSERT_GE(dup2(other.writer.get(), pipe.writer.get()), 0);
  writer->push("after\n");
  EXPECT_THAT(read_lines(other.reader.get(), [](const auto& line) { return line == "after"; }),
              ElementsAre("log: 1000 log lines were lost: write the log: Broken pipe", "after"));
}

TEST(LogWriter, AFullDiskCostsLinesUntilTheFileIsReplaced) {
  const UniqueFd fd{open("/dev/full", O_WRONLY | O_CLOEXEC)};
  ASSERT_TRUE(fd);
  const auto writer = start_writer(fd.get());
  writer->push("lost\n");
  ASSERT_TRUE(writer->flush());

  const TempDirectory directory;
  const UniqueFd file{open((directory.path() / "log").c_str(), O_WRONLY | O_CREAT, 0600)};
  ASSERT_GE(dup2(file.get(), fd.get()), 0);
  writer->push("kept\n");
  ASSERT_TRUE(writer->flush());
  EXPECT_EQ(directory.read("log"),
            "log: 1 log line was lost: write the log: No space left on device\nkept\n");
}

TEST(LogWriter, ADescriptorThatDoesNotBlockLosesNothing) {
  Pipe pipe;
  ASSERT_EQ(fcntl(pipe.writer.get(), F_SETFL, O_NONBLOCK), 0);
  const auto writer = start_writer(pipe.writer.get());
  constexpr std::size_t kLines = 10'000;  // more than the pipe has room for
  for (std::size_t i = 0; i < kLines; ++i) writer->push(numbered(i));
  const auto lines = read_lines(pipe.reader.get(), [](const std::string& line) {
    return line + '\n' == numbered(kLines - 1);
  });
  EXPECT_EQ(lines.size(), kLines);
}

TEST(LogWriter, FlushAndEndWaitForAStuckReaderOnlyAWhile) {
  Pipe pipe;
  {
    const auto writer = start_writer(pipe.writer.get());
    for (std::size_t i = 0; i < 10'000; ++i) writer->push(numbered(i));
    EXPECT_FALSE(writer->flush());
  }  // returns, although the thread is stuck
  // The thread still writes what it has got, once there is a reader.
  const auto lines = read_lines(
      pipe.reader.get(), [](const std::string& line) { return line + '\n' == numbered(9'999); });
  EXPECT_EQ(lines.size(), 10'000u);
}

TEST(LogWriter, LinesOfManyThreadsAreWhole) {
  Pipe pipe;
  constexpr std::size_t kThreads = 8, kLines = 2'000;
  const auto writer = start_writer(pipe.writer.get());
  std::vector<std::thread> threads;
  for (std::size_t t = 0; t < kThreads; ++t)
    threads.emplace_back([&writer, t] {
      for (std::size_t i = 0; i < kLines; ++i)
        writer->push(std::to_string(t) + ' ' + std::to_string(i) + '\n');
    });
  std::array<std::size_t, kThreads> next{};
  std::size_t read = 0;
  const auto lines =
      read_lines(pipe.reader.get(), [&](const auto&) { return ++read == kThreads * kLines; });
  for (std::thread& thread : threads) thread.join();
  for (const std::string& line : lines) {
    const std::size_t t = std::stoull(line);
    ASSERT_LT(t, kThreads);
    EXPECT_EQ(line, std::to_string(t) + ' ' + std::to_string(next[t]++));
  }
  EXPECT_EQ(lines.size(), kThreads * kLines);
}

TEST(LogWriter, ItsThreadTakesNoSignals) {
  Pipe pipe;
  const auto writer = start_writer(pipe.writer.get());
  sigset_t terminate;
  sigemptyset(&terminate);
  sigaddset(&terminate, SIGTERM);
  ASSERT_EQ(pthread_sigmask(SIG_BLOCK, &terminate, nullptr), 0);
  ASSERT_EQ(kill(getpid(), SIGTERM), 0);  // ends the process if any thread takes it
  int number = 0;
  EXPECT_EQ(sigwait(&terminate, &number), 0);
  EXPECT_EQ(number, SIGTERM);
  ASSERT_EQ(pthread_sigmask(SIG_UNBLOCK, &terminate, nullptr), 0);
}

}  // namespace
}  // namespace kvhive::testing
