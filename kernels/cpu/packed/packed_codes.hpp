#pragma once
// The table by which attention over packed pages converts 8-bit KV to bf16.

#include <cstdint>

#include "config/dtype.hpp"

namespace kvhive {

/// The bf16 of each 7-bit code of an 8-bit type (sign cleared), lower and upper bytes apart: 128
/// entries fit into two registers. For int8 the code is the magnitude, and code 0 holds the bf16 of
/// 128.
struct Bf16OfCodes {
  std::uint8_t low[128] = {};
  std::uint8_t high[128] = {};
};

/// \param dtype of eight bits
Bf16OfCodes bf16_of_codes(Dtype dtype);

}  // namespace kvhive
