#pragma once
// The 8-bit element types of a quantised KV cache: OCP FP8 (e4m3 of the "fn" kind, e5m2) and int8.
// Bits and rounding are those of cvt.rn.satfinite, so that CPU and GPU write the same cache.

#include <bit>
#include <cstdint>

#include "config/dtype.hpp"

namespace kvhive {

/// The largest finite value; 1 for types that are not quantised to.
constexpr float largest_of(Dtype dtype) {
  switch (dtype) {
    case Dtype::e4m3: return 448.0f;
    case Dtype::e5m2: return 57344.0f;
    case Dtype::int8: return 127.0f;
    default: return 1.0f;
  }
}

namespace detail {

/// Round to nearest, ties to even; saturates at `largest`, infinities too; NaN becomes 0x7f.
template <int kMantissaBits, int kBias>
inline std::uint8_t fp8_of_float(float value, float largest) {
  constexpr int kShift = 23 - kMantissaBits;
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = bits >> 24 & 0x80u;
  const std::uint32_t magnitude = bits & 0x7fffffffu;
  const auto limit = std::bit_cast<std::uint32_t>(largest);
  const std::uint32_t finite = magnitude < limit ? magnitude : limit;

  const std::uint32_t rounded = finite + (1u << (kShift - 1)) - 1 + (finite >> kShift & 1u);
  const std::uint32_t normal = (rounded - (std::uint32_t{127 - kBias} << 23)) >> kShift;
  // Added to this, the last bit of a float's mantissa is the smallest subnormal: the adder rounds.
  constexpr std::uint32_t kSubnormalUlp = std::uint32_t{127 + 24 - kBias - kMantissaBits} << 23;
  const float sum = std::bit_cast<float>(finite) + std::bit_cast<float>(kSubnormalUlp);
  const std::uint32_t subnormal = std::bit_cast<std::uint32_t>(sum) - kSubnormalUlp;

  constexpr std::uint32_t kSmallestNormal = std::uint32_t{128 - kBias} << 23;
  const std::uint32_t code = sign | (finite < kSmallestNormal ? subnormal : normal);
  return static_cast<std::uint8_t>(magnitude > 0x7f800000u ? 0x7fu : code);
}

}  // namespace detail

inline std::uint8_t e4m3_of_float(float value) { return detail::fp8_of_float<3, 7>(value, 448.0f); }

inline std::uint8_t e5m2_of_float(float value) {
  return detail::fp8_of_float<2, 15>(value, 57344.0f);
}

inline float float_of_e5m2(std::uint8_t code) {
  return float_of_f16(static_cast<std::uint16_t>(code << 8));  // the upper half of an f16
}

inline float float_of_e4m3(std::uint8_t code) {
  const std::uint32_t sign = std::uint32_t{code & 0x80u} << 8;
  const std::uint32_t magnitude = code & 0x7fu;
  const std::uint32_t half = magnitude == 0x7fu ? 0x7e00u : magnitude << 7;  // value * 2^-8 in f16
  return float_of_f16(static_cast<std::uint16_t>(sign | half)) * 256.0f;
}

/// Round to nearest, ties to even; saturates at +-127; NaN becomes 0.
inline std::int8_t int8_of_float(float value) {
  const float below = value < 127.0f ? value : 127.0f;
  const float clamped = below > -127.0f ? below : -127.0f;
  // Added to this, the last bit of a float's mantissa is 1: the adder rounds.
  const auto bits = std::bit_cast<std::int32_t>(clamped + 0x1.8p23f);
  return static_cast<std::int8_t>(value != value ? 0 : bits - 0x4b400000);
}

}  // namespace kvhive
