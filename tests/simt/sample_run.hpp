#pragma once
// Runs the sample kernels on small inputs; outputs start as NaN.

#include <cmath>
#include <cstring>
#include <vector>

#include "config/dtype.hpp"
#include "kernels/simt/launch.hpp"
#include "tests/simt/sample_kernels.cuh"

namespace kvhive::samples {

inline std::vector<float> counting(std::size_t n) {
  std::vector<float> values(n);
  for (std::size_t i = 0; i < n; ++i) values[i] = static_cast<float>(i % 251) * 0.25f;
  return values;
}

inline std::vector<float> nothing(std::size_t n) { return std::vector<float>(n, std::nanf("")); }

inline std::vector<float> run_pass_around(Bug bug) {
  constexpr unsigned kBlocks = 3;
  const std::vector<float> in = counting(kBlocks * kThreads);
  std::vector<float> out = nothing(in.size());
  simt::launch(pass_around, {kBlocks}, {kThreads}, kThreads * sizeof(float), in.data(), out.data(),
               bug);
  return out;
}

inline std::vector<float> run_copy_async(Bug bug) {
  const std::vector<float> in = counting(4 * kThreads + 4);
  std::vector<float> out = nothing(kThreads);
  simt::launch(copy_async, {1}, {kThreads}, 4 * kThreads * sizeof(float), in.data(), out.data(),
               bug);
  return out;
}

inline std::vector<float> run_multiply(Bug bug) {
  std::vector<std::uint16_t> a(16 * 16), b(8 * 16);
  for (std::size_t i = 0; i < a.size(); ++i) a[i] = bf16_of_float(static_cast<float>(i % 13) - 6);
  for (std::size_t i = 0; i < b.size(); ++i) b[i] = bf16_of_float(static_cast<float>(i % 7) - 3);
  std::vector<float> d = nothing(16 * 8);
  simt::launch(multiply, {1}, {32}, 1024, a.data(), b.data(), d.data(), bug);
  return d;
}

/// The kernel that the bug is seeded in.
inline std::vector<float> run_with(Bug bug) {
  switch (bug) {
    case Bug::misaligned_copy:
    case Bug::missing_copy_wait:
    case Bug::missing_barrier_after_wait: return run_copy_async(bug);
    case Bug::missing_syncwarp: return run_multiply(bug);
    default: return run_pass_around(bug);
  }
}

}  // namespace kvhive::samples
