#include "models/rope.hpp"

#include <cmath>
#include <numbers>

#include "base/check.hpp"

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
  const auto smooth = static_cast<float>((context / wavelength - scaling.low_freq_factor) /
                                         (scaling.high_freq_factor - scaling.low_freq_factor));
  return (1 - smooth) * frequency / static_cast<float>(scaling.factor) + smooth * frequency;
}

float scaled_frequency(float frequency, const RopeScaling& scaling) {
  switch (scaling.kind) {
    case RopeScaling::Kind::none: return frequency;
    case RopeScaling::Kind::linear: return frequency / static_cast<float>(scaling.factor);
    case RopeScaling::Kind::llama3: return llama3_frequency(frequency, scaling);
  }
  return frequency;
}

}  // namespace

Rope::Rope(const ModelConfig& config) {
  const std::int32_t half = config.head_size / 2;
  for (std::int32_t i = 0; i < half; ++i) {
    const float exponent = static_cast<float>(2 * i) / static_cast<float>(config.head_size);
    const auto frequency = static_cast<float>(1.0 / std::pow(config.rope_theta, double{exponent}));
    frequencies_.push_back(scaled_frequency(frequency, config.rope_scaling));
  }
}

void Rope::angles(std::span<const std::int32_t> positions, RopeAngles& angles) const {
  const std::size_t half = frequencies_.size();
  angles.cosines.resize(positions.size() * half);
  angles.sines.resize(positions.size() * half);
  for (std::size_t t = 0; t < positions.size(); ++t)
    for (std::size_t i = 0; i < half; ++i) {
      const float angle = static_cast<float>(positions[t]) * frequencies_[i];
      angles.cosines[t * half + i] = std::cos(angle);
      angles.sines[t * half + i] = std::sin(angle);
    }
}

void Rope::rotate(std::span<float> rows, std::int32_t heads, const RopeAngles& angles) const {
  const std::size_t half = frequencies_.size();
  const std::size_t tokens = angles.cosines.size() / half;
  KV_CHECK(rows.size() == tokens * heads * 2 * half, rows.size(), tokens, heads, half);
  for (std::size_t t = 0; t < tokens; ++t) {
    const float* cosine = &angles.cosines[t * half];
    const float* sine = &angles.sines[t * half];
    for (std::int32_t h = 0; h < heads; ++h) {
      float* low = &rows[(t * heads + h) * 2 * half];
      float* high = low + half;
      for (std::size_t i = 0; i < half; ++i) {
        const float a = low[i];
        const float b = high[i];
        low[i] = a * cosine[i] - b * sine[i];
        high[i] = b * cosine[i] + a * sine[i];
      }
    }
  }
}

}  // namespace kvhive
