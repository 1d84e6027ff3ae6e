#pragma once
// Measures the seconds since its construction, on a monotonic clock.

#include <chrono>
#include <cstdint>

namespace kvhive {

/// Nanoseconds of the machine's monotonic clock, which all its processes share (but for those in a
/// time namespace of their own).
inline std::uint64_t monotonic_ns() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return static_cast<std::uint64_t>(std::chrono::nanoseconds(now).count());
}

class StopWatch {
 public:
  double seconds() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  }

 private:
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

}  // namespace kvhive
