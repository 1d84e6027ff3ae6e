#include "tools/keeper/detach.hpp"

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <filesystem>

#include "base/log.hpp"
#include "base/logging/patient_write.hpp"

namespace kvhive {
namespace {

/// First byte of what the child reports to its parent; the line follows.
constexpr char kReady = 'r', kFailed = 'f';

using std::chrono::milliseconds;

/// How long the daemon waits for a stream that has no room: a pipe that no process reads never has.
constexpr milliseconds kDaemonsPatience{200};
/// The parent of a detached daemon is the user's command; it waits as long as its streams do.
constexpr milliseconds kForever{-1};

Expected<void> write_all(int fd, const std::string& text, milliseconds patience) {
  const PatientlyWritten written = write_patiently(fd, text, patience);
  if (written.error == 0) return {};
  errno = written.error;
  return os_failure("write");
}

std::string read_all(int fd) {
  std::string text;
  char piece[1024];
  while (true) {
    const ssize_t got = read(fd, piece, sizeof piece);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return text;
    text.append(piece, static_cast<std::size_t>(got));
  }
}

/// Writes `line` to standard error and exits with 1. If even that fails, only the exit code tells.
[[noreturn]] void exit_with_error(const std::string& line) {
  (void)write_all(STDERR_FILENO, line + "\n", kForever);
  _exit(1);
}

/// Run by the parent: prints the child's line and exits.
[[noreturn]] void report_and_exit(int pipe, const std::string& log) {
  const std::string report = read_all(pipe);
  if (report.empty())
    exit_with_error("kvhived: the daemon ended before it was ready; see its log in " + log);
  const std::string line = report.substr(1);
  if (report.front() != kReady) exit_with_error(line);
  if (auto written = write_all(STDOUT_FILENO, line + "\n", kForever); !written)
    exit_with_error("kvhived: the daemon is ready, but standard output: " + written.error().text);
  _exit(0);
}

Expected<UniqueFd> duplicate(int fd) {
  UniqueFd copy{fcntl(fd, F_DUPFD_CLOEXEC, 3)};
  if (!copy && errno != EBADF) return os_failure("duplicate a standard stream");
  return copy;  // a stream that the shell has closed stays closed
}

Expected<std::filesystem::path> state_directory() {
  if (const char* state = std::getenv("XDG_STATE_HOME"); state != nullptr && *state != '\0')
    return std::filesystem::path(state);
  if (geteuid() == 0) return std::filesystem::path("/var/log");
  if (const char* home = std::getenv("HOME"); home != nullptr && *home != '\0')
    return std::filesystem::path(home) / ".local/state";
  return failure(Errc::bad_argument,
                 "log-file: neither XDG_STATE_HOME nor HOME is set, so that a "
                 "detached daemon has no "
                 "place for its log; name one with --log-file");
}

}  // namespace

Expected<Starter> Starter::in_foreground() {
  Starter starter;
  auto out = duplicate(STDOUT_FILENO);
  if (!out) return forward_error(out);
  auto err = duplicate(STDERR_FILENO);
  if (!err) return forward_error(err);
  starter.out_ = std::move(*out);
  starter.err_ = std::move(*err);
  starter.manager_ = ServiceManager::of_this_process();
  return starter;
}

Expected<Starter> Starter::detach(const std::string& log) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return os_failure("pipe");
  UniqueFd read_end(ends[0]), write_end(ends[1]);
  const UniqueFd nothing{open("/dev/null", O_RDWR | O_CLOEXEC)};
  if (!nothing) return os_failure("open /dev/null");
  const pid_t child = fork();
  if (child < 0) return os_failure("fork");
  if (child != 0) {
    write_end = UniqueFd();
    report_and_exit(read_end.get(), log);
  }
  setsid();
  dup2(nothing.get(), STDIN_FILENO);
  dup2(nothing.get(), STDOUT_FILENO);
  Starter starter;
  starter.report_ = std::move(write_end);
  return starter;
}

Expected<void> Starter::ready(const std::string& line) {
  manager_.tell("READY=1\nSTATUS=" + line);
  if (!report_) return write_all(out_.get(), line + "\n", kDaemonsPatience);
  auto told = write_all(report_.get(), kReady + line, kDaemonsPatience);
  // The parent sees the pipe's end. The number stays taken: successors know it as one of the
  // front's, and it must not become a client's.
  dup3(STDIN_FILENO, report_.get(), O_CLOEXEC);
  if (told) return told;
  return failure(Errc::peer_died, "the process that started the daemon has ended (Ctrl-C?)");
}

void Starter::failed(const std::string& line) {
  flush_log();  // the line comes after those of the log
  // If the line cannot be written, the exit code still tells that the daemon failed.
  if (report_)
    (void)write_all(report_.get(), kFailed + line, kDaemonsPatience);
  else
    (void)write_all(err_.get(), line + "\n", kDaemonsPatience);
  report_ = UniqueFd();
}

Expected<std::string> default_log_file(bool is_of_system) {
  Expected<std::filesystem::path> state = std::filesystem::path("/var/log");
  if (!is_of_system) state = state_directory();
  if (!state) return forward_error(state);
  return (*state / "kvhive" / "kvhived.log").string();
}

Expected<void> make_log_directory(const std::string& log_file) {
  const auto directory = std::filesystem::path(log_file).parent_path();
  std::error_code error;
  std::filesystem::create_directories(directory, error);
  if (!error) return {};
  return failure(Errc::os_error, "log-file: make directory " + directory.string() + ": " +
                                     error.message() + "; name another place with --log-file");
}

}  // namespace kvhive
