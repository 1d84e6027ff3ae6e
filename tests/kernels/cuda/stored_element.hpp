#pragma once
// One element of a cache as its bytes.

#include <cstdint>
#include <cstring>

#include "config/dtype.hpp"
#include "config/fp8.hpp"

namespace kvhive::testing_support {

inline void store_element(std::byte* address, Dtype dtype, float value) {
  const auto put = [address](auto code) { std::memcpy(address, &code, sizeof code); };
  switch (dtype) {
    case Dtype::f32: return put(value);
    case Dtype::bf16: return put(bf16_of_float(value));
    case Dtype::f16: return put(f16_of_float(value));
    case Dtype::e4m3: return put(e4m3_of_float(value));
    case Dtype::e5m2: return put(e5m2_of_float(value));
    case Dtype::int8: return put(int8_of_float(value));
  }
}

inline float load_element(const std::byte* address, Dtype dtype) {
  const auto get = [address](auto code) {
    std::memcpy(&code, address, sizeof code);
    return code;
  };
  switch (dtype) {
    case Dtype::f32: return get(0.0f);
    case Dtype::bf16: return float_of_bf16(get(std::uint16_t{}));
    case Dtype::f16: return float_of_f16(get(std::uint16_t{}));
    case Dtype::e4m3: return float_of_e4m3(get(std::uint8_t{}));
    case Dtype::e5m2: return float_of_e5m2(get(std::uint8_t{}));
    case Dtype::int8: return static_cast<float>(get(std::int8_t{}));
  }
  return 0;
}

}  // namespace kvhive::testing_support
