#pragma once
// Work beside a yardstick, such as one read of the weights: measured by turns, printed as a line of
// a table.

#include <omp.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "tools/bench/paired.hpp"

namespace kvhive::bench {

using Line = std::uint64_t __attribute__((vector_size(64)));

__attribute__((target_clones("avx512f", "avx2", "default"))) static std::uint64_t read_once(
    const std::byte* from, std::size_t bytes) {
  // Reading four ranges at the same time is fastest.
  const std::size_t run = bytes / 4 / 64 * 64;
  Line sums[4] = {};
  for (std::size_t i = 0; i < run; i += 64)
    for (int j = 0; j < 4; ++j) {
      Line line;
      std::memcpy(&line, from + j * run + i, sizeof line);
      sums[j] += line;
    }
  const Line sum = sums[0] + sums[1] + sums[2] + sums[3];
  return sum[0] + sum[1] + sum[2] + sum[3] + sum[4] + sum[5] + sum[6] + sum[7];
}

/// By all threads of OpenMP.
inline void read_all(std::span<const std::byte> bytes) {
  constexpr std::size_t kPiece = 1 << 20;
  std::uint64_t checksum = 0;
#pragma omp parallel for schedule(dynamic) reduction(+ : checksum)
  for (std::size_t at = 0; at < bytes.size(); at += kPiece)
    checksum += read_once(bytes.data() + at, std::min(kPiece, bytes.size() - at));
  volatile std::uint64_t sink = checksum;
  static_cast<void>(sink);
}

struct Comparison {
  double work, yardstick;  ///< seconds, medians
  double ratio;            ///< median of yardstick / work
};

inline Comparison compare(std::int32_t pairs, const std::function<void()>& work,
                          const std::function<void()>& yardstick) {
  work();
  yardstick();
  std::vector<double> works, yardsticks, ratios;
  for (std::int32_t i = 0; i < pairs; ++i) {
    works.push_back(seconds_of(work));
    yardsticks.push_back(seconds_of(yardstick));
    ratios.push_back(yardsticks.back() / works.back());
  }
  return {median(works), median(yardsticks), median(ratios)};
}

/// Measures and prints the cases whose name has `only` in it.
struct Table {
  std::string only;

  bool has(const std::string& name) const { return name.find(only) != std::string::npos; }

  void add(const std::string& name, std::int32_t pairs, const std::function<void()>& work,
           const std::function<void()>& yardstick) const {
    if (!has(name)) return;
    const Comparison result = compare(pairs, work, yardstick);
    std::printf("%-44s %7d %10.2f %10.2f %7.2f\n", name.c_str(), omp_get_max_threads(),
                result.work * 1e3, result.yardstick * 1e3, result.ratio);
    std::fflush(stdout);
  }
};

}  // namespace kvhive::bench
