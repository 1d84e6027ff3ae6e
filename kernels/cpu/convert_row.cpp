// Plain loops over the conversions of config/, compiled once per instruction set. The compiler
// vectorises them; the rounding is the reference's because it is the same code.

#include "kernels/cpu/convert_row.hpp"

#include <bit>
#include <cstdint>
#include <cstring>

#include "config/fp8.hpp"

// SSSE3 is too old to be worth its compile time.
#define HWY_DISABLED_TARGETS HWY_SSSE3
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/convert_row.cpp"
#include "hwy/foreach_target.h"
// foreach_target.h must be included first.
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace kvhive {
namespace HWY_NAMESPACE {

template <float (*kWiden)(std::uint16_t)>
void widen_as(const std::byte* from, std::size_t count, float* HWY_RESTRICT to) {
  for (std::size_t i = 0; i < count; ++i) {
    std::uint16_t bits;
    std::memcpy(&bits, from + i * sizeof bits, sizeof bits);
    to[i] = kWiden(bits);
  }
}

void widen_row(const std::byte* from, Dtype dtype, std::size_t count, float* HWY_RESTRICT to) {
  if (dtype == Dtype::bf16) return widen_as<float_of_bf16>(from, count, to);
  if (dtype == Dtype::f16) return widen_as<float_of_f16>(from, count, to);
  std::memcpy(to, from, count * sizeof(float));
}

template <class Bits, Bits (*kRound)(float)>
void narrow_as(const float* HWY_RESTRICT from, float scale, std::size_t count,
               std::byte* HWY_RESTRICT to) {
  const auto store = [to](std::size_t i, float value) {
    const Bits bits = kRound(value);
    std::memcpy(to + i * sizeof bits, &bits, sizeof bits);
  };
  if (scale == 1.0f) {
    for (std::size_t i = 0; i < count; ++i) store(i, from[i]);
  } else {
    for (std::size_t i = 0; i < count; ++i) store(i, from[i] / scale);
  }
}

std::uint32_t bits_of_float(float value) { return std::bit_cast<std::uint32_t>(value); }

void narrow_row(const float* from, float scale, std::size_t count, Dtype dtype, std::byte* to) {
  switch (dtype) {
    case Dtype::f32: return narrow_as<std::uint32_t, bits_of_float>(from, scale, count, to);
    case Dtype::bf16: return narrow_as<std::uint16_t, bf16_of_float>(from, scale, count, to);
    case Dtype::f16: return narrow_as<std::uint16_t, f16_of_float>(from, scale, count, to);
    case Dtype::e4m3: return narrow_as<std::uint8_t, e4m3_of_float>(from, scale, count, to);
    case Dtype::e5m2: return narrow_as<std::uint8_t, e5m2_of_float>(from, scale, count, to);
    case Dtype::int8: return narrow_as<std::int8_t, int8_of_float>(from, scale, count, to);
  }
}

float largest_magnitude_of(const float* values, std::size_t count) {
  std::uint32_t largest = 0;  // magnitudes of floats order as their bits do
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint32_t bits = std::bit_cast<std::uint32_t>(values[i]) & 0x7fffffffu;
    const std::uint32_t magnitude = bits > 0x7f800000u ? 0 : bits;
    largest = largest > magnitude ? largest : magnitude;
  }
  return std::bit_cast<float>(largest);
}

}  // namespace HWY_NAMESPACE
}  // namespace kvhive
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvhive {
namespace {

HWY_EXPORT(widen_row);
HWY_EXPORT(narrow_row);
HWY_EXPORT(largest_magnitude_of);

}  // namespace

void widen(const std::byte* from, Dtype dtype, std::size_t count, float* to) {
  HWY_DYNAMIC_DISPATCH(widen_row)(from, dtype, count, to);
}

void narrow(const float* from, float scale, std::size_t count, Dtype dtype, std::byte* to) {
  HWY_DYNAMIC_DISPATCH(narrow_row)(from, scale, count, dtype, to);
}

float largest_magnitude(const float* values, std::size_t count) {
  return HWY_DYNAMIC_DISPATCH(largest_magnitude_of)(values, count);
}

}  // namespace kvhive
#endif  // HWY_ONCE
