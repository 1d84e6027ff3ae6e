#pragma once
// A progress bar on standard error, if that is a terminal.

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>

namespace kvhive {

class ProgressBar {
 public:
  explicit ProgressBar(std::string title)
      : title_(std::move(title)), is_shown_(isatty(STDERR_FILENO) != 0 && !is_dumb_terminal()) {}
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  /// Erases the bar, so that the next output starts on an empty line.
  ~ProgressBar() {
    if (last_percent_ < 0) return;
    std::fprintf(stderr, "\r\033[K");
    std::fflush(stderr);
  }

  void show(std::size_t done, std::size_t total) {
    if (!is_shown_ || total == 0) return;
    const int percent = static_cast<int>(std::min(done, total) * 100 / total);
    if (percent == last_percent_) return;
    last_percent_ = percent;
    const int filled = percent * kWidth / 100;
    std::fprintf(stderr, "\r%s [%-*s] %3d%%", title_.c_str(), kWidth,
                 std::string(static_cast<std::size_t>(filled), '#').c_str(), percent);
    std::fflush(stderr);
  }

 private:
  /// A terminal that cannot move its cursor would print each step on a line of its own.
  static bool is_dumb_terminal() {
    const char* terminal = std::getenv("TERM");
    return terminal == nullptr || std::string(terminal) == "dumb";
  }

  static constexpr int kWidth = 30;
  std::string title_;
  bool is_shown_;
  int last_percent_ = -1;
};

}  // namespace kvhive
