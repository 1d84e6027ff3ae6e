#pragma once
// The tensor core's instructions with the register fragments of the PTX ISA ("mma.m16n8k16" and
// "ldmatrix"), so that a kernel that expects an element in the wrong lane fails here, too.

#include <bit>
#include <cstdint>
#include <cstring>

#include "kernels/simt/kernel_calls.hpp"

namespace simt {

inline void expect_whole_warp(const WarpWords& words, const char* what, Line line) {
  if (words.lanes != ~0u) fail(what, line);
}

/// d [16][8] += a [16][16] * b [16][8] in float; the product for k is added before the one for k +
/// 1.
/// \param to_float converts 16 bits (bf16 or f16) to float
template <class ToFloat>
void mma_m16n8k16(float (&d)[4], const std::uint32_t (&a)[4], const std::uint32_t (&b)[2],
                  const char* operation, ToFloat to_float, Line line) {
  // Each lane brings its elements as floats: converted once, not by each lane that reads them.
  constexpr int kWords = 6;
  std::uint64_t brought[kWords];
  for (int reg = 0; reg < kWords; ++reg) {
    const std::uint32_t pair = reg < 4 ? a[reg] : b[reg - 4];
    const float elements[2] = {to_float(static_cast<std::uint16_t>(pair)),
                               to_float(static_cast<std::uint16_t>(pair >> 16))};
    std::memcpy(&brought[reg], elements, sizeof elements);
  }
  const WarpWords words = warp_exchange(~0u, operation, brought, kWords, MemoryOrder::none, line);
  expect_whole_warp(words, "mma: a lane has exited", line);
  const auto element = [&](int lane, int reg, int odd) {
    return std::bit_cast<float>(static_cast<std::uint32_t>(words.of[lane][reg] >> (odd * 32)));
  };
  const int lane = static_cast<int>(self->lane);
  for (int i = 0; i < 4; ++i) {
    const int row = lane / 4 + (i / 2) * 8;
    const int column = lane % 4 * 2 + i % 2;
    float sum = 0;
    for (int k = 0; k < 16; ++k) {
      const int k_lane = k % 8 / 2;
      const float x = element(row % 8 * 4 + k_lane, (row >= 8) + 2 * (k >= 8), k % 2);
      const float y = element(column * 4 + k_lane, 4 + (k >= 8), k % 2);
      sum += x * y;
    }
    d[i] += sum;
  }
}

/// ldmatrix.x4: loads four 8x8 matrices of 16-bit elements. Lane i passes the address of row i%8 of
/// matrix i/8. Transposed: a lane gets two elements of one column.
enum class Transposed { no, yes };
inline void ldmatrix_x4(std::uint32_t (&fragment)[4], const void* row, Transposed transposed,
                        Line line) {
  expect_aligned(row, 16, "ldmatrix", line);
  const std::uint64_t address = reinterpret_cast<std::uint64_t>(row);
  const WarpWords words = warp_exchange(~0u, "ldmatrix", &address, 1, MemoryOrder::none, line);
  expect_whole_warp(words, "ldmatrix: a lane has exited", line);
  const int lane = static_cast<int>(self->lane);
  for (int m = 0; m < 4; ++m) {
    std::uint32_t pair = 0;
    for (int e = 0; e < 2; ++e) {
      const int along = lane % 4 * 2 + e, across = lane / 4;
      const int r = transposed == Transposed::yes ? along : across;
      const int c = transposed == Transposed::yes ? across : along;
      // Read through the pointer here, in the lane that needs the element, so that sanitizers see
      // it.
      const auto* elements = reinterpret_cast<const std::uint16_t*>(words.of[m * 8 + r][0]);
      pair |= std::uint32_t{elements[c]} << (16 * e);
    }
    fragment[m] = pair;
  }
}

}  // namespace simt
