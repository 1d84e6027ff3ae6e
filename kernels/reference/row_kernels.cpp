#include "kernels/row_kernels.hpp"

#include <cmath>
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
    const double cosine = std::cos(angle), sine = std::sin(angle);
    store_element(heads, first + i, static_cast<float>(x[i] * cosine - x[half + i] * sine),
                  args.dtype);
    store_element(heads, first + half + i, static_cast<float>(x[half + i] * cosine + x[i] * sine),
                  args.dtype);
  }
}

}  // namespace

void embed_reference(const EmbedArgs& args) {
  check_arguments(args);
  const std::size_t width = args.width;
  for (std::size_t t = 0; t < std::size_t(args.T); ++t)
    for (std::size_t i = 0; i < width; ++i)
      args.out[t * width + i] = load_element(args.table, args.tokens[t] * width + i, args.dtype);
}

void add_rms_norm_reference(const AddRmsNormArgs& args) {
  check_arguments(args);
  const std::size_t width = args.width;
  std::vector<double> x(width);
  for (std::size_t i = 0; i < std::size_t(args.n); ++i) {
    const std::size_t first = (args.rows == nullptr ? i : args.rows[i]) * width;
    for (std::size_t d = 0; d < width; ++d) {
      // A float, since the residual is stored as one and the norm must be that of the stored
      // values.
      float sum = args.residual[first + d];
      if (args.delta != nullptr) sum += load_element(args.delta, first + d, args.delta_dtype);
      if (args.rows == nullptr) args.residual[first + d] = sum;
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

void silu_multiply_reference(const SiluMultiplyArgs& args) {
  check_arguments(args);
  for (std::size_t t = 0; t < std::size_t(args.T); ++t)
    for (std::size_t i = 0; i < std::size_t(args.I); ++i) {
      const double gate = load_element(args.gate, t * args.in_stride + i, args.dtype);
      const double up = load_element(args.up, t * args.in_stride + i, args.dtype);
      store_element(args.out, t * args.I + i, static_cast<float>(gate / (1 + std::exp(-gate)) * up),
                    args.dtype);
    }
}

}  // namespace kvhive
