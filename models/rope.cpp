#include "models/rope.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/check.hpp"
#include "models/row_ops.hpp"

namespace kvhive {
namespace {

/// Llama 3's scaling of frequencies: long wavelengths are multiplied by `factor`, short wavelengths
/// stay, wavelengths between them are interpolated.
float llama3_frequency(float frequency, const RopeScaling& scaling) {
  const auto context = static_cast<double>(scaling.original_max_position);
  const float wavelength = static_cast<float>(2 * std::numbers::pi) / frequency;
  if (wavelength > context / scaling.low_freq_factor)
    return frequency / static_cast<float>(scaling.factor);
  if (wavelength < context / scaling.high_freq_factor) return frequency;
  if (scaling.high_freq_factor == scaling.low_freq_factor) return frequency;
  const auto smooth = static_cast<float>((context / wavelength - scaling.low_freq_factor) /
                                         (scaling.high_freq_factor - scaling.low_freq_factor));
  return (1 - smooth) * frequency / static_cast<float>(scaling.factor) + smooth * frequency;
}

/// The pair that turns `turns` times in the original context, as a fraction between two pairs.
double yarn_pair(double turns, std::int32_t head_size, const RopeConfig& rope) {
  const auto context = static_cast<double>(rope.scaling.original_max_position);
  return head_size * std::log(context / (turns * 2 * std::numbers::pi)) /
         (2 * std::log(rope.theta));
}

/// YaRN: pairs before `low` keep their frequency, those from `high` on are stretched by `factor`,
/// between them the two are mixed.
struct YarnRamp {
  float low = 0, high = 0;

  YarnRamp(std::int32_t head_size, const RopeConfig& rope) {
    double first = yarn_pair(rope.scaling.beta_fast, head_size, rope);
    double last = yarn_pair(rope.scaling.beta_slow, head_size, rope);
    if (rope.scaling.is_truncated) {
      first = std::floor(first);
      last = std::ceil(last);
    }
    first = std::max(first, 0.0);
    last = std::min(last, head_size - 1.0);
    if (first == last) last += 0.001;
    low = static_cast<float>(first);
    high = static_cast<float>(last);
  }

  float frequency(std::int32_t pair, float unscaled, float factor) const {
    const float ramp = std::clamp((static_cast<float>(pair) - low) / (high - low), 0.0f, 1.0f);
    const float kept = 1 - ramp;
    return unscaled / factor * (1 - kept) + unscaled * kept;
  }
};

}  // namespace

Rope::Rope(std::int32_t head_size, const RopeConfig& rope) {
  using Kind = RopeScaling::Kind;
  const RopeScaling& scaling = rope.scaling;
  const auto factor = static_cast<float>(scaling.factor);
  for (std::int32_t i = 0; i < head_size / 2; ++i) {
    const float exponent = static_cast<float>(2 * i) / static_cast<float>(head_size);
    auto frequency = static_cast<float>(1.0 / std::pow(rope.theta, double{exponent}));
    switch (scaling.kind) {
      case Kind::none: break;
      case Kind::linear: frequency /= factor; break;
      case Kind::llama3: frequency = llama3_frequency(frequency, scaling); break;
      case Kind::yarn: frequency = YarnRamp(head_size, rope).frequency(i, frequency, factor); break;
    }
    frequencies_.push_back(frequency);
  }
  if (scaling.kind == Kind::yarn) attention_factor_ = static_cast<float>(scaling.attention_factor);
}

void Rope::angles(std::span<const std::int32_t> positions, RopeAngles& angles) const {
  const std::size_t half = frequencies_.size();
  angles.cosines.resize(positions.size() * half);
  angles.sines.resize(positions.size() * half);
  for (std::size_t t = 0; t < positions.size(); ++t)
    for (std::size_t i = 0; i < half; ++i) {
      const float angle = static_cast<float>(positions[t]) * frequencies_[i];
      angles.cosines[t * half + i] = std::cos(angle) * attention_factor_;
      angles.sines[t * half + i] = std::sin(angle) * attention_factor_;
    }
}

void Rope::rotate(std::span<float> rows, std::int32_t heads, const RopeAngles& angles) const {
  rotate_heads(rows, std::size_t(heads), angles.cosines, angles.sines, frequencies_.size());
}

void Rope::rotate_neighbours(std::span<float> rows, std::size_t stride, std::int32_t heads,
                             const RopeAngles& angles) const {
  const std::size_t half = frequencies_.size();
  const std::size_t tokens = angles.cosines.size() / half;
  KV_CHECK(tokens == 0 || rows.size() >= (tokens * heads - 1) * stride + 2 * half, rows.size(),
           tokens, heads, stride);
  for (std::size_t t = 0; t < tokens; ++t) {
    const float* cosine = &angles.cosines[t * half];
    const float* sine = &angles.sines[t * half];
    for (std::int32_t h = 0; h < heads; ++h) {
      float* pair = &rows[(t * heads + h) * stride];
      for (std::size_t i = 0; i < half; ++i, pair += 2) {
        const float a = pair[0];
        const float b = pair[1];
        pair[0] = a * cosine[i] - b * sine[i];
        pair[1] = b * cosine[i] + a * sine[i];
      }
    }
  }
}

}  // namespace kvhive
