#pragma once
// What the emulations of tiles and vectors share: single floats as those instructions treat them.

#include <cstdint>
#include <cstring>

namespace kvhive {
namespace emulated_floats {

static inline std::uint32_t bits_of(float x) {
  std::uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  return bits;
}

static inline float float_of(std::uint32_t bits) {
  float x;
  std::memcpy(&x, &bits, sizeof x);
  return x;
}

/// A denormal becomes a zero of the same sign.
static inline float without_denormal(float x) {
  const std::uint32_t bits = bits_of(x);
  return (bits & 0x7f800000u) == 0 ? float_of(bits & 0x80000000u) : x;
}

/// A bf16, denormals as 0.
static inline float widened(std::uint16_t bf16) {
  return without_denormal(float_of(std::uint32_t{bf16} << 16));
}

static inline float fused(float a, float b, float c) { return __builtin_fmaf(a, b, c); }

/// To the nearest bf16, ties to even; denormals become 0, NaN stays NaN.
static inline std::uint16_t narrowed(float x) {
  const std::uint32_t bits = bits_of(without_denormal(x));
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<std::uint16_t>((bits >> 16) | 0x40u);
  return static_cast<std::uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

}  // namespace emulated_floats
}  // namespace kvhive
