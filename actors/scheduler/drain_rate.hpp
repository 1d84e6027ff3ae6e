#pragma once
// How fast the requests that wait get their turn, from what the last steps did: the answer to
// "when shall I try again?". The clock is the steps' own time, so nothing is learnt while nothing
// runs.

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>

namespace kvhive {

class DrainRate {
 public:
  /// \param seconds  that the step took; 0 = not measured
  /// \param tokens   of requests that left the queue in it
  void add_step(double seconds, std::size_t tokens) {
    const double faded = std::exp(-seconds / kMemory);
    seconds_ = seconds_ * faded + seconds;
    tokens_ = tokens_ * faded + static_cast<double>(tokens);
  }

  /// When so many tokens will have left the queue. Within bounds, because it is a guess.
  std::chrono::milliseconds time_for(std::size_t tokens) const {
    if (tokens_ <= 0) return kUnknown;
    const std::chrono::duration<double> time(static_cast<double>(tokens) * seconds_ / tokens_);
    if (time > kMost) return kMost;
    return std::max(kLeast, std::chrono::duration_cast<std::chrono::milliseconds>(time));
  }

  static constexpr std::chrono::milliseconds kLeast{10}, kUnknown{1000}, kMost{60'000};

 private:
  static constexpr double kMemory = 10;  ///< seconds of steps after which most is forgotten

  double seconds_ = 0, tokens_ = 0;
};

}  // namespace kvhive
