#pragma once
// Times two things alternately (A, B, A, B): on a machine whose speed changes, only the ratio
// within a pair means something.

#include <algorithm>
#include <chrono>
#include <vector>

namespace kvhive::bench {

inline double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values.empty() ? 0 : values[values.size() / 2];
}

template <class Work>
double seconds_of(Work&& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace kvhive::bench
