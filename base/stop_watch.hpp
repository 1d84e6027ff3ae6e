#pragma once
// Measures the seconds since its construction, on a monotonic clock.

#include <chrono>

namespace kvhive {

class StopWatch {
 public:
  double seconds() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  }

 private:
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

}  // namespace kvhive
