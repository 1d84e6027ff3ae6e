#include "tests/enemies/statistics.hpp"

#include <algorithm>
#include <cmath>
#include <random>

namespace kvhive::testing {

double quantile(std::vector<double> values, double share) {
  if (values.empty()) return 0;
  const auto rank = static_cast<std::size_t>(std::ceil(share * static_cast<double>(values.size())));
  const auto place =
      values.begin() + static_cast<std::ptrdiff_t>(std::max<std::size_t>(rank, 1) - 1);
  std::nth_element(values.begin(), place, values.end());
  return *place;
}

Interval median_with_interval(const std::vector<double>& values, std::uint64_t seed) {
  constexpr int kSamples = 2000;
  if (values.empty()) return {};
  std::mt19937_64 random(seed);
  std::vector<double> medians;
  for (int i = 0; i < kSamples; ++i) {
    std::vector<double> drawn;
    for (std::size_t n = 0; n < values.size(); ++n)
      drawn.push_back(values[random() % values.size()]);
    medians.push_back(median(std::move(drawn)));
  }
  return {median(values), quantile(medians, 0.025), quantile(medians, 0.975)};
}

}  // namespace kvhive::testing
