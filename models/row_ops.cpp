#include "models/row_ops.hpp"

#include <omp.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <functional>
#include <numbers>

#include "base/check.hpp"

namespace kvhive {
namespace {

/// Values below which threads are not woken: a few hundred microseconds of one core.
constexpr std::size_t kSerialNormValues = std::size_t{1} << 20;
constexpr std::size_t kSerialSiluValues = std::size_t{1} << 17;

int threads_for(std::size_t values, std::size_t serial_values) {
  return values < serial_values ? 1 : omp_get_max_threads();
}

/// 16 partial sums, so that the loop vectorises, added up pairwise.
float sum_of_squares(std::span<const float> x) {
  constexpr std::size_t kLanes = 16;
  std::array<float, kLanes> sums{};
  const std::size_t whole = x.size() / kLanes * kLanes;
  for (std::size_t i = 0; i < whole; i += kLanes)
    for (std::size_t lane = 0; lane < kLanes; ++lane) sums[lane] += x[i + lane] * x[i + lane];
  for (std::size_t i = whole; i < x.size(); ++i) sums[i - whole] += x[i] * x[i];
  for (std::size_t step = kLanes / 2; step > 0; step /= 2)
    for (std::size_t lane = 0; lane < step; ++lane) sums[lane] += sums[lane + step];
  return sums[0];
}

}  // namespace

void rms_norm(std::span<const float> x, std::span<const float> weight, float eps,
              std::span<float> out) {
  const std::size_t width = weight.size();
  KV_CHECK(x.size() == out.size() && x.size() % width == 0, x.size(), out.size(), width);
  const std::size_t rows = x.size() / width;
#pragma omp parallel for num_threads(threads_for(x.size(), kSerialNormValues))
  for (std::size_t row = 0; row < rows; ++row) {
    const auto from = x.subspan(row * width, width);
    float* to = &out[row * width];
    const float scale = 1 / std::sqrt(sum_of_squares(from) / static_cast<float>(width) + eps);
    for (std::size_t i = 0; i < width; ++i) to[i] = from[i] * scale * weight[i];
  }
}

void silu_multiply(std::span<float> gate, std::span<const float> up) {
  KV_CHECK(gate.size() == up.size(), gate.size(), up.size());
#pragma omp parallel for num_threads(threads_for(gate.size(), kSerialSiluValues))
  for (std::size_t i = 0; i < gate.size(); ++i)
    gate[i] = gate[i] / (1 + std::exp(-gate[i])) * up[i];
}

void gelu_multiply(std::span<float> gate, std::span<const float> up) {
  KV_CHECK(gate.size() == up.size(), gate.size(), up.size());
  constexpr auto kRoot = static_cast<float>(std::numbers::sqrt2 * std::numbers::inv_sqrtpi);
#pragma omp parallel for num_threads(threads_for(gate.size(), kSerialSiluValues))
  for (std::size_t i = 0; i < gate.size(); ++i) {
    const float x = gate[i];
    gate[i] = 0.5f * x * (1 + std::tanh(kRoot * (x + 0.044715f * x * x * x))) * up[i];
  }
}

void soft_cap(std::span<float> x, float cap) {
#pragma omp parallel for num_threads(threads_for(x.size(), kSerialSiluValues))
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = cap * std::tanh(x[i] / cap);
}

void scale_in_place(std::span<float> x, float factor) {
  for (float& value : x) value *= factor;
}

void add_in_place(std::span<float> x, std::span<const float> y) {
  KV_CHECK(x.size() == y.size(), x.size(), y.size());
  std::ranges::transform(x, y, x.begin(), std::plus<>());
}

}  // namespace kvhive
