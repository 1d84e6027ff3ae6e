#pragma once
// Reads and writes one element of any type. Slow and obvious: not for the inner loops of kernels.

#include <cstddef>
#include <cstring>

#include "base/check.hpp"
#include "config/fp8.hpp"

namespace kvhive {

inline float load_element(const std::byte* from, Dtype dtype) {
  std::uint32_t bits = 0;
  std::memcpy(&bits, from, bytes_of(dtype));
  switch (dtype) {
    case Dtype::f32: return std::bit_cast<float>(bits);
    case Dtype::bf16: return float_of_bf16(static_cast<std::uint16_t>(bits));
    case Dtype::f16: return float_of_f16(static_cast<std::uint16_t>(bits));
    case Dtype::e4m3: return float_of_e4m3(static_cast<std::uint8_t>(bits));
    case Dtype::e5m2: return float_of_e5m2(static_cast<std::uint8_t>(bits));
    case Dtype::int8: return static_cast<std::int8_t>(bits);
  }
  KV_CHECK(false, int(dtype));
}

/// Element i of an array.
inline float load_element(const void* array, std::size_t i, Dtype dtype) {
  return load_element(static_cast<const std::byte*>(array) + i * bytes_of(dtype), dtype);
}

/// Rounds to nearest, ties to even.
inline void store_element(std::byte* to, float value, Dtype dtype) {
  std::uint32_t bits = 0;
  switch (dtype) {
    case Dtype::f32: bits = std::bit_cast<std::uint32_t>(value); break;
    case Dtype::bf16: bits = bf16_of_float(value); break;
    case Dtype::f16: bits = f16_of_float(value); break;
    case Dtype::e4m3: bits = e4m3_of_float(value); break;
    case Dtype::e5m2: bits = e5m2_of_float(value); break;
    case Dtype::int8: bits = static_cast<std::uint8_t>(int8_of_float(value)); break;
  }
  std::memcpy(to, &bits, bytes_of(dtype));  // elements in memory are little-endian
}

inline void store_element(void* array, std::size_t i, float value, Dtype dtype) {
  store_element(static_cast<std::byte*>(array) + i * bytes_of(dtype), value, dtype);
}

}  // namespace kvhive
