#include "base/log.hpp"

#include <fcntl.h>
#include <spdlog/sinks/stdout_color_sinks.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

#include "base/unique_fd.hpp"

namespace kvhive {
namespace {

/// Colours only on a terminal that has them, and not if NO_COLOR is set (https://no-color.org).
spdlog::color_mode color_mode() {
  const char* no_color = std::getenv("NO_COLOR");
  const bool is_unwanted = no_color != nullptr && *no_color != '\0';
  return is_unwanted ? spdlog::color_mode::never : spdlog::color_mode::automatic;
}

constexpr const char* kForPeople = "%H:%M:%S.%e %^%-5l%$ [%n] %v";
constexpr const char* kForFiles = "%Y-%m-%d %H:%M:%S.%e %-5l [%n %P] %v";

/// Empty = the log goes to standard error as the process found it.
std::string& log_path() {
  static std::string path;
  return path;
}

/// Makes standard error the file at `path`.
Expected<void> redirect_standard_error(const std::string& path) {
  const UniqueFd file{
      open(path.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NOCTTY, 0640)};
  if (!file) return os_failure("log-file: open " + path);
  if (dup2(file.get(), STDERR_FILENO) < 0) return os_failure("log-file: redirect to " + path);
  return {};
}

}  // namespace

void start_log(const std::string& name, const std::string& level) {
  // A line is written at once. A line with colours would be several writes, and processes that
  // share a terminal would tear each other's lines.
  static char line[4096];
  std::setvbuf(stderr, line, _IOLBF, sizeof line);
  auto logger = spdlog::stderr_color_mt(name, color_mode());
  logger->set_pattern(log_path().empty() ? kForPeople : kForFiles);
  logger->set_level(spdlog::level::from_str(level));
  spdlog::set_default_logger(std::move(logger));
}

Expected<void> start_log(const std::string& name, const std::string& level,
                         const std::string& path) {
  if (!path.empty())
    if (auto redirected = redirect_standard_error(path); !redirected) return redirected;
  log_path() = path;
  start_log(name, level);
  return {};
}

Expected<void> reopen_log() {
  if (log_path().empty()) return {};
  return redirect_standard_error(log_path());
}

}  // namespace kvhive
