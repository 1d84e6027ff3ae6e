#pragma once
// The tensor core's instructions with the register fragments of the PTX ISA ("mma.m16n8k16" and
// "ldmatrix"), so that a kernel that expects an element in the wrong lane fails here, too.

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
  // A row of a and a column of b lie in four lanes, a pair of elements in each of two registers.
  const auto gather = [&](int first_lane, int reg, int next_reg, float(&to)[16]) {
    for (int k = 0; k < 16; k += 2)
      std::memcpy(&to[k], &words.of[first_lane + k % 8 / 2][k < 8 ? reg : next_reg],
                  2 * sizeof(float));
  };
  const int lane = static_cast<int>(self->lane);
  float rows[2][16], columns[2][16];
  for (int i = 0; i < 2; ++i) {
    gather(lane / 4 * 4, i, i + 2, rows[i]);
    gather((lane % 4 * 2 + i) * 4, 4, 5, columns[i]);
  }
  float upper_left = 0, upper_right = 0, lower_left = 0, lower_right = 0;  // in registers
  for (int k = 0; k < 16; ++k) {
    upper_left += rows[0][k] * columns[0][k];
    upper_right += rows[0][k] * columns[1][k];
    lower_left += rows[1][k] * columns[0][k];
    lower_right += rows[1][k] * columns[1][k];
  }
  d[0] += upper_left;
  d[1] += upper_right;
  d[2] += lower_left;
  d[3] += lower_right;
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
