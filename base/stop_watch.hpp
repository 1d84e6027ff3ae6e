#pragma once
// Clocks that only go forward: the machine's, and the time that a thread has computed.

#include <time.h>

#include <chrono>
#include <cstdint>

namespace kvhive {

/// Nanoseconds of the machine's monotonic clock, which all its processes share (but for those in a
/// time namespace of their own).
inline std::uint64_t monotonic_ns() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return static_cast<std::uint64_t>(std::chrono::nanoseconds(now).count());
}

/// CPU time of this thread. It stands still while another process has the core.
inline std::chrono::nanoseconds thread_cpu_time() {
  timespec time{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return std::chrono::seconds(time.tv_sec) + std::chrono::nanoseconds(time.tv_nsec);
}

/// Measures the seconds since its construction.
class StopWatch {
 public:
  double seconds() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  }

 private:
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

}  // namespace kvhive
