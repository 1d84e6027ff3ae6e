#pragma once
// Part of sources that are compiled for AVX-512, hence of internal linkage (README.md).

#include "kernels/cpu/instructions/vectors.hpp"

namespace kvhive {
namespace KVHIVE_INSTRUCTIONS {
namespace {

/// Transposes 16 x 16 elements of 32 bits.
inline __attribute__((always_inline)) void transpose_16x16(__m512i (&r)[16]) {
  constexpr int kEvenQuarters = 0x88, kOddQuarters = 0xdd;
  __m512i t[16];
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) {
    t[2 * i] = _mm512_unpacklo_epi32(r[2 * i], r[2 * i + 1]);
    t[2 * i + 1] = _mm512_unpackhi_epi32(r[2 * i], r[2 * i + 1]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    r[4 * i] = _mm512_unpacklo_epi64(t[4 * i], t[4 * i + 2]);
    r[4 * i + 1] = _mm512_unpackhi_epi64(t[4 * i], t[4 * i + 2]);
    r[4 * i + 2] = _mm512_unpacklo_epi64(t[4 * i + 1], t[4 * i + 3]);
    r[4 * i + 3] = _mm512_unpackhi_epi64(t[4 * i + 1], t[4 * i + 3]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    t[i] = _mm512_shuffle_i32x4(r[i], r[4 + i], kEvenQuarters);
    t[4 + i] = _mm512_shuffle_i32x4(r[i], r[4 + i], kOddQuarters);
    t[8 + i] = _mm512_shuffle_i32x4(r[8 + i], r[12 + i], kEvenQuarters);
    t[12 + i] = _mm512_shuffle_i32x4(r[8 + i], r[12 + i], kOddQuarters);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    r[i] = _mm512_shuffle_i32x4(t[i], t[8 + i], kEvenQuarters);
    r[8 + i] = _mm512_shuffle_i32x4(t[i], t[8 + i], kOddQuarters);
    r[4 + i] = _mm512_shuffle_i32x4(t[4 + i], t[12 + i], kEvenQuarters);
    r[12 + i] = _mm512_shuffle_i32x4(t[4 + i], t[12 + i], kOddQuarters);
  }
}

}  // namespace
}  // namespace KVHIVE_INSTRUCTIONS
}  // namespace kvhive
