#pragma once
// The table by which attention over packed pages turns 8-bit KV into bf16.

#include <cstdint>

#include "config/dtype.hpp"

namespace kvhive {

/// The bf16 of an 8-bit type's codes, sign and all above it cleared, lower and upper halves: a
/// table of 7 bits fits two registers. For int8 of magnitudes instead, and of 128 in place of 0.
struct Bf16OfCodes {
  std::uint8_t low[128] = {};
  std::uint8_t high[128] = {};
};

/// \param dtype  of eight bits
Bf16OfCodes bf16_of_codes(Dtype dtype);

}  // namespace kvhive
