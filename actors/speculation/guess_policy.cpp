#include "actors/speculation/guess_policy.hpp"

#include <algorithm>

namespace kvhive {
namespace {

constexpr double kNewest = 1.0 / 8;     ///< weight of the newest guess in a rate
constexpr double kRecovery = 1.0 / 64;  ///< of what is missing, for each token without a guess
constexpr double kFading = 63.0 / 64;   ///< weight of a step against that of the next one

}  // namespace

void HitRate::learn(std::size_t guessed, std::size_t right) {
  for (std::size_t i = 0; i < std::min(guessed, right + 1); ++i)
    value_ += kNewest * ((i < right ? 1 : 0) - value_);
}

void HitRate::rest() { value_ += kRecovery * (std::max(kAtFirst, value_) - value_); }

void GuessPolicy::learn(std::size_t tokens, double seconds) {
  if (tokens == 0 || seconds <= 0) return;
  const auto count = static_cast<double>(tokens);
  for (double* sum : {&steps_, &tokens_, &seconds_, &tokens_squared_, &tokens_by_seconds_})
    *sum *= kFading;
  steps_ += 1;
  tokens_ += count;
  seconds_ += seconds;
  tokens_squared_ += count * count;
  tokens_by_seconds_ += count * seconds;
}

/// By least squares. Steps that are all of a size say nothing about it.
double GuessPolicy::share_of_rows(std::size_t rows) const {
  const double spread = steps_ * tokens_squared_ - tokens_ * tokens_;
  if (spread <= 1e-6 * tokens_squared_ * steps_) return 0;
  const double slope = (steps_ * tokens_by_seconds_ - tokens_ * seconds_) / spread;
  const double fixed = std::max(0.0, (seconds_ - slope * tokens_) / steps_);
  const double growing = std::max(0.0, slope * static_cast<double>(rows));
  return growing == 0 ? 0 : growing / (fixed + growing);
}

std::size_t GuessPolicy::worth(double hit_rate, std::size_t rows, std::size_t most) const {
  const double share = share_of_rows(rows);
  double right = hit_rate;
  std::size_t count = 0;
  for (; count < most && right > share; ++count) right *= hit_rate;
  return count;
}

}  // namespace kvhive
