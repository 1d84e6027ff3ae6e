#include "kernels/cpu/packed/packed_codes.hpp"

#include "config/fp8.hpp"

namespace kvhive {

Bf16OfCodes bf16_of_codes(Dtype dtype) {
  Bf16OfCodes table;
  for (int i = 0; i < 128; ++i) {
    const auto code = static_cast<std::uint8_t>(i);
    const float value = dtype == Dtype::e4m3   ? float_of_e4m3(code)
                        : dtype == Dtype::e5m2 ? float_of_e5m2(code)
                                               : static_cast<float>(i == 0 ? 128 : i);
    const std::uint16_t bits = bf16_of_float(value);
    table.low[i] = static_cast<std::uint8_t>(bits);
    table.high[i] = static_cast<std::uint8_t>(bits >> 8);
  }
  return table;
}

}  // namespace kvhive
