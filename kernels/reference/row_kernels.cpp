#include "kernels/row_kernels.hpp"

#include <cmath>
#include <numbers>
#include <vector>

#include "kernels/arguments.hpp"
#include "kernels/element.hpp"

namespace kvhive {
namespace {

/// 1 / sqrt(mean(x^2) + eps)
double norm_scale(const std::vector<double>& x, double eps) {
  double sum = 0;
  for (const double value : x) sum += value * value;
  return 1 / std::sqrt(sum / static_cast<double>(x.size()) + eps);
}

/// Normalises and rotates the head that begins at element `first` of `heads`.
void rotate_head(const RotateArgs& args, void* heads, std::size_t first, const float* norm,
                 std::int32_t position) {
  const std::size_t half = args.D / 2;
  std::vector<double> x(args.D);
  for (std::size_t d = 0; d < x.size(); ++d) x[d] = load_element(heads, first + d, args.dtype);
  if (norm != nullptr) {
    const double scale = norm_scale(x, args.eps);
    for (std::size_t d = 0; d < x.size(); ++d) x[d] *= scale * norm[d];
  }
  for (std::size_t i = 0; i < half; ++i) {
    const double angle = static_cast<float>(position) * args.frequencies[i];
    const double cosine = std::cos(angle) * args.factor, sine = std::sin(angle) * args.factor;
    store_element(heads, first + i, static_cast<float>(x[i] * cosine - x[half + i] * sine),
                  args.dtype);
    store_element(heads, first + half + i, static_cast<float>(x[half + i] * cosine + x[i] * sine),
                  args.dtype);
  }
}

double activated(Activation activation, double x) {
  if (activation == Activation::silu) return x / (1 + std::exp(-x));
  return x / 2 * (1 + std::tanh(std::sqrt(2 / std::numbers::pi) * (x + 0.044715 * x * x * x)));
}

}  // namespace

void embed_reference(const EmbedArgs& args) {
  check_arguments(args);
  const std::size_t width = args.width;
  for (std::size_t t = 0; t < std::size_t(args.T); ++t)
    for (std::size_t i = 0; i < width; ++i)
      args.out[t * width + i] =
          load_element(args.table, args.tokens[t] * width + i, args.dtype) * args.scale;
}

void add_rms_norm_reference(const AddRmsNormArgs& args) {
  check_arguments(args);
  const std::size_t width = args.width;
  const std::size_t delta_stride = args.delta_stride == 0 ? width : args.delta_stride;
  std::vector<double> x(width);
  for (std::size_t i = 0; i < std::size_t(args.n); ++i) {
    const std::size_t row = args.rows == nullptr ? i : args.rows[i], first = row * width;
    for (std::size_t d = 0; d < width; ++d) {
      // A float, since the residual is stored as one and the norm must be that of the stored
      // values.
      float sum = args.residual == nullptr ? 0 : args.residual[first + d];
      if (args.delta != nullptr)
        sum += load_element(args.delta, row * delta_stride + d, args.delta_dtype);
      if (args.rows == nullptr && args.residual != nullptr) args.residual[first + d] = sum;
      x[d] = sum;
    }
    const double scale = norm_scale(x, args.eps);
    for (std::size_t d = 0; d < width; ++d)
      store_element(args.out, i * width + d, static_cast<float>(x[d] * scale * args.weight[d]),
                    args.out_dtype);
  }
}

void rotate_reference(const RotateArgs& args) {
  check_arguments(args);
  for (std::size_t t = 0; t < std::size_t(args.T); ++t) {
    for (std::int32_t h = 0; h < args.H; ++h)
      rotate_head(args, args.q, (t * args.H + h) * args.D, args.q_norm, args.positions[t]);
    for (std::int32_t g = 0; g < args.G; ++g)
      rotate_head(args, args.k, (t * args.G + g) * args.D, args.k_norm, args.positions[t]);
  }
}

void rotate_pairs_reference(const RotatePairsArgs& args) {
  check_arguments(args);
  for (std::int64_t t = 0; t < args.T; ++t)
    for (std::int64_t head = t * args.H; head < (t + 1) * args.H; ++head)
      for (std::int64_t i = 0; i < args.D / 2; ++i) {
        const double angle = static_cast<float>(args.positions[t]) * args.frequencies[i];
        const double cosine = std::cos(angle) * args.factor, sine = std::sin(angle) * args.factor;
        const std::int64_t from = head * args.from_stride + 2 * i;
        const double a = load_element(args.from, from, args.dtype);
        const double b = load_element(args.from, from + 1, args.dtype);
        const std::int64_t to = head * args.to_stride + 2 * i;
        store_element(args.to, to, static_cast<float>(a * cosine - b * sine), args.dtype);
        store_element(args.to, to + 1, static_cast<float>(b * cosine + a * sine), args.dtype);
      }
}

void tune_queries_reference(const TuneQueriesArgs& args) {
  check_arguments(args);
  const std::size_t width = args.width;
  for (std::size_t t = 0; t < std::size_t(args.T); ++t) {
    const float turns = std::floor((static_cast<float>(args.positions[t]) + 1) / args.floor);
    const double factor = std::log(double{turns} + 1) * args.scale + 1;
    for (std::size_t i = t * width; i < (t + 1) * width; ++i)
      store_element(args.q, i, static_cast<float>(load_element(args.q, i, args.dtype) * factor),
                    args.dtype);
  }
}

void gate_multiply_reference(const GateMultiplyArgs& args) {
  check_arguments(args);
  for (std::size_t t = 0; t < std::size_t(args.T); ++t)
    for (std::size_t i = 0; i < std::size_t(args.I); ++i) {
      const double weight = args.weights == nullptr ? 1 : args.weights[args.pairs[t]];
      const double gate = weight * load_element(args.gate, t * args.in_stride + i, args.dtype);
      const double up = weight * load_element(args.up, t * args.in_stride + i, args.dtype);
      store_element(args.out, t * args.I + i,
                    static_cast<float>(activated(args.activation, gate) * up), args.dtype);
    }
}

void soft_cap_reference(const SoftCapArgs& args) {
  check_arguments(args);
  const double cap = args.cap;
  for (std::int64_t i = 0; i < args.count; ++i)
    args.values[i] = static_cast<float>(cap * std::tanh(args.values[i] / cap));
}

}  // namespace kvhive
