#pragma once
// A limit for log lines that others can cause: a client that is refused a thousand times a second
// must not fill the log.

#include <chrono>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

namespace kvhive {

/// Lets through a number of lines in each period of time and counts the others. There is one object
/// for each cause. Usage:
///
///   static LogLimit limit;
///   if (const auto note = limit.admit()) spdlog::warn("refused pid {}{}", pid, *note);
///
/// A period begins with the first line after the last period's end, so no timer is needed. The last
/// line of a period says that further ones are left out, and the first line after it how many were.
///
/// \threads  any
class LogLimit {
 public:
  using Time = std::chrono::steady_clock::time_point;
  using Clock = std::function<Time()>;

  /// \param lines  at least 1
  explicit LogLimit(std::uint32_t lines = 10,
                    std::chrono::seconds period = std::chrono::seconds(10),
                    Clock clock = std::chrono::steady_clock::now)
      : lines_(lines), period_(period), clock_(std::move(clock)) {}

  /// Nothing if the line must not be logged; otherwise what to append to it, mostly "".
  std::optional<std::string> admit() {
    const std::lock_guard lock(mutex_);
    const Time now = clock_();
    if (!start_ || now - *start_ >= period_) {
      start_ = now;
      admitted_ = 0;
    }
    if (admitted_ == lines_) {
      ++left_out_;
      return std::nullopt;
    }
    ++admitted_;
    return note(now);
  }

 private:
  std::string note(Time now) {
    std::string text;
    if (left_out_ != 0) text = " (" + std::to_string(left_out_) + " more like it were left out)";
    left_out_ = 0;
    const auto rest =
        std::chrono::ceil<std::chrono::seconds>(period_ - (now - start_.value_or(now)));
    if (admitted_ == lines_)
      text += " (more like it are left out for " + std::to_string(rest.count()) + " s)";
    return text;
  }

  const std::uint32_t lines_;
  const std::chrono::seconds period_;
  const Clock clock_;
  std::mutex mutex_;
  std::optional<Time> start_;   ///< of the period
  std::uint32_t admitted_ = 0;  ///< lines in this period
  std::uint64_t left_out_ = 0;  ///< lines since the last one that was let through
};

}  // namespace kvhive
