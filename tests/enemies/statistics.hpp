#pragma once
// Quantiles of samples, and how sure the median of a few paired ratios is.

#include <cstdint>
#include <utility>
#include <vector>

namespace kvhive::testing {

/// The smallest value that at least this share of all values does not exceed. 0 if there are none.
double quantile(std::vector<double> values, double share);

inline double median(std::vector<double> values) { return quantile(std::move(values), 0.5); }

struct Interval {
  double middle = 0, low = 0, high = 0;
};

/// The median, and its 95 % interval by the bootstrap: the medians of 2,000 samples, drawn with
/// replacement from these values.
Interval median_with_interval(const std::vector<double>& values, std::uint64_t seed);

}  // namespace kvhive::testing
