#pragma once
// The two-sample Kolmogorov-Smirnov test: whether two samples come from the same distribution. It
// compares the whole distributions, not only the means, and assumes nothing about their shapes.

#include <algorithm>
#include <cmath>
#include <vector>

namespace kvhive::testing {

struct KolmogorovSmirnov {
  double distance;  ///< largest difference between the two shares of values up to some value
  double p;         ///< chance of a distance like this if there is no difference
};

/// \source  Numerical Recipes, 14.3.3 (Stephens' approximation; good from about 8 values each)
inline KolmogorovSmirnov kolmogorov_smirnov(std::vector<double> a, std::vector<double> b) {
  std::sort(a.begin(), a.end());
  std::sort(b.begin(), b.end());
  const auto n = static_cast<double>(a.size()), m = static_cast<double>(b.size());
  double distance = 0;
  for (std::size_t i = 0, j = 0; i < a.size() && j < b.size();) {
    const double value = std::min(a[i], b[j]);
    while (i < a.size() && a[i] == value) ++i;  // a clock has ticks, so many values are equal
    while (j < b.size() && b[j] == value) ++j;
    distance =
        std::max(distance, std::abs(static_cast<double>(i) / n - static_cast<double>(j) / m));
  }
  const double root = std::sqrt(n * m / (n + m));
  const double lambda = (root + 0.12 + 0.11 / root) * distance;
  double p = 0;
  for (int k = 1; k <= 100; ++k)
    p += (k % 2 == 1 ? 2 : -2) * std::exp(-2.0 * k * k * lambda * lambda);
  // Below 0.2 the sum converges too slowly.
  return {distance, lambda < 0.2 ? 1.0 : std::clamp(p, 0.0, 1.0)};
}

}  // namespace kvhive::testing
