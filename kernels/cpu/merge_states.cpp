#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "kernels/arguments.hpp"
#include "kernels/cpu/convert_row.hpp"
#include "kernels/merge_states.hpp"

namespace kvhive {
namespace {

/// Below this, waking other threads costs more than they save.
constexpr std::int64_t kSerialElements = 1 << 15;

/// The weights of one row's two parts, and the logarithm of their sum.
struct Weights {
  Weights(float a_lse, float b_lse) {
    const float max = std::max(a_lse, b_lse);
    if (max == -std::numeric_limits<float>::infinity()) return;
    a = std::exp(a_lse - max);
    b = std::exp(b_lse - max);
    const float sum = a + b;
    lse = max + std::log(sum);
    a /= sum;
    b /= sum;
  }

  float a = 0;
  float b = 0;
  float lse = -std::numeric_limits<float>::infinity();
};

/// to[i] += weight * part[i]. Skips a part of weight 0, since its values may be NaN.
void add(const std::byte* part, Dtype dtype, float weight, std::vector<float>& values,
         std::vector<float>& to) {
  if (weight == 0) return;
  widen(part, dtype, values.size(), values.data());
  for (std::size_t i = 0; i < to.size(); ++i) to[i] += weight * values[i];
}

}  // namespace

void merge_states_cpu(const MergeStatesArgs& args) {
  check_arguments(args);
  const auto D = static_cast<std::size_t>(args.D);
  const std::int64_t rows = std::int64_t{args.T} * args.H;
#pragma omp parallel if (rows * args.D > kSerialElements)
  {
    std::vector<float> values(D), sum(D);
#pragma omp for schedule(static)
    for (std::int64_t row = 0; row < rows; ++row) {
      const std::size_t at = static_cast<std::size_t>(row) * D * bytes_of(args.dtype);
      const Weights weights(args.a_lse[row], args.b_lse[row]);
      std::fill(sum.begin(), sum.end(), 0.0f);
      add(static_cast<const std::byte*>(args.a) + at, args.dtype, weights.a, values, sum);
      add(static_cast<const std::byte*>(args.b) + at, args.dtype, weights.b, values, sum);
      narrow(sum.data(), 1.0f, D, args.dtype, static_cast<std::byte*>(args.out) + at);
      if (args.lse) args.lse[row] = weights.lse;
    }
  }
}

}  // namespace kvhive
