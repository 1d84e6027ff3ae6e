#include "base/log.hpp"

#include <fcntl.h>
#include <spdlog/details/os.h>
#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/base_sink.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <new>

#include "base/check.hpp"
#include "base/logging/log_writer.hpp"
#include "base/unique_fd.hpp"

namespace kvhive {
namespace {

/// Colours only on a terminal that has them, and not if NO_COLOR is set (https://no-color.org).
bool wants_colors() {
  const char* no_color = std::getenv("NO_COLOR");
  if (no_color != nullptr && *no_color != '\0') return false;
  return isatty(STDERR_FILENO) != 0 && spdlog::details::os::is_color_terminal();
}

constexpr const char* kForPeople = "%H:%M:%S.%e %^%-5l%$ [%n] %v";
constexpr const char* kForFiles = "%Y-%m-%d %H:%M:%S.%e %-5l [%n %P] %v";

constexpr std::string_view kNoColor = "\033[m";
/// By spdlog's levels, trace to critical: white, cyan, green, bold yellow, bold red, bold on red.
constexpr std::array<std::string_view, 6> kColors = {
    "\033[37m", "\033[36m", "\033[32m", "\033[33m\033[1m", "\033[31m\033[1m", "\033[1m\033[41m"};

/// Formats lines and gives them to the writer.
class WriterSink : public spdlog::sinks::base_sink<std::mutex> {
 public:
  WriterSink(LogWriter& writer, bool is_colored) : writer_(writer), is_colored_(is_colored) {}

 protected:
  void sink_it_(const spdlog::details::log_msg& message) override {
    message.color_range_start = message.color_range_end = 0;
    spdlog::memory_buf_t formatted;
    formatter_->format(message, formatted);
    std::string line(formatted.data(), formatted.size());
    if (is_colored_ && std::size_t(message.level) < kColors.size() &&
        message.color_range_end > message.color_range_start) {
      line.insert(message.color_range_end, kNoColor);
      line.insert(message.color_range_start, kColors[message.level]);
    }
    writer_.push(line, message.level == spdlog::level::critical ? LogWriter::Admission::always
                                                                : LogWriter::Admission::if_room);
  }
  void flush_() override { (void)writer_.flush(); }

 private:
  LogWriter& writer_;
  const bool is_colored_;
};

/// Empty = the log goes to standard error as the process found it.
std::string& log_path() {
  static std::string path;
  return path;
}

/// Null until the log has started. Never destroyed: threads may log while the process ends.
LogWriter*& writer() {
  static LogWriter* instance = nullptr;
  return instance;
}

/// Makes standard error the file at `path`.
Expected<void> redirect_standard_error(const std::string& path) {
  // O_NONBLOCK: a named pipe that nobody reads is an error here (ENXIO), rather than a wait.
  const UniqueFd file{
      open(path.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NOCTTY | O_NONBLOCK, 0640)};
  if (!file) return os_failure("log-file: open " + path);
  if (fcntl(file.get(), F_SETFL, O_APPEND) != 0) return os_failure("log-file: set up " + path);
  if (dup2(file.get(), STDERR_FILENO) < 0) return os_failure("log-file: redirect to " + path);
  return {};
}

/// Makes lines that the writer has to say, in the log's form.
LogWriter::Format format_as_log(const std::string& name, const char* pattern) {
  auto formatter = std::make_shared<spdlog::pattern_formatter>(pattern);
  return [name, formatter](const std::string& text) {
    spdlog::memory_buf_t line;
    formatter->format(spdlog::details::log_msg(name, spdlog::level::warn, text), line);
    return std::string(line.data(), line.size());
  };
}

/// What spdlog calls when a line cannot be made: a format that does not fit, or no memory. By
/// default spdlog would print the reason to standard error, and wait for its reader.
void tell_unmade_line(const std::string& reason) noexcept {
  try {
    writer()->push("a log line could not be made: " + reason + '\n');
  } catch (const std::bad_alloc&) {
    writer()->count_dropped();
  }
}

void use_writer(const std::string& name, const std::string& level, const char* pattern) {
  auto logger = std::make_shared<spdlog::logger>(
      name, std::make_shared<WriterSink>(*writer(), wants_colors()));
  logger->set_pattern(pattern);
  logger->set_level(spdlog::level::from_str(level));
  logger->flush_on(spdlog::level::critical);
  logger->set_error_handler(tell_unmade_line);
  spdlog::set_default_logger(std::move(logger));
}

}  // namespace

void set_log_level(const std::string& level) { spdlog::set_level(spdlog::level::from_str(level)); }

Expected<void> start_log(const std::string& name, const std::string& level,
                         const std::string& path) {
  const char* pattern = path.empty() ? kForPeople : kForFiles;
  auto started =
      LogWriter::start(STDERR_FILENO, LogWriter::kUsualBytes, format_as_log(name, pattern));
  if (!started) return forward_error(started);
  if (!path.empty())
    if (auto redirected = redirect_standard_error(path); !redirected) return redirected;
  // What a library prints is written line by line, so that processes that share a terminal do not
  // tear each other's lines.
  static char line[4096];
  std::setvbuf(stderr, line, _IOLBF, sizeof line);
  log_path() = path;
  writer() = started->release();
  use_writer(name, level, pattern);
  detail::print_failed_check = [](const std::string& text) { print_error_line(text); };
  std::atexit(flush_log);
  return {};
}

Expected<void> reopen_log() {
  if (log_path().empty()) return {};
  flush_log();  // lines from before the rename belong into the old file
  return redirect_standard_error(log_path());
}

void flush_log() {
  if (writer() != nullptr) (void)writer()->flush();
}

void print_error_line(std::string_view line) {
  std::string whole(line);
  whole += '\n';
  if (writer() == nullptr) {
    (void)std::fwrite(whole.data(), 1, whole.size(), stderr);
    return;
  }
  writer()->push(whole, LogWriter::Admission::always);
  (void)writer()->flush();
}

}  // namespace kvhive
