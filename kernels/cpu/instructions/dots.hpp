#pragma once
// Dot products of pairs of bf16, in two ways with the same bits (payloads of NaN aside): by one
// instruction (VDPBF16PS), or, in a source compiled with KVHIVE_MULTIPLIED, by two fused
// multiplications of the floats that bf16 are. A Zen does as many of the one as of the other; the
// instruction takes a Xeon as long as four multiplications. A process takes what its CPU does
// faster (dot_way.hpp).
//
// The instruction multiplies the odd elements first, and takes and gives denormals as 0; so must
// the thread (denormals.hpp). Of internal linkage (README.md).

#include <cstdint>

#include "kernels/cpu/instructions/denormals.hpp"
#include "kernels/cpu/instructions/vectors.hpp"

namespace kvhive {
namespace KVHIVE_INSTRUCTIONS {
namespace {

#ifdef KVHIVE_MULTIPLIED

/// An element of a query, or a weight, that multiplies all lanes.
using DotNumber = float;
/// 16 pairs.
struct DotPairs {
  __m512 odd, even;
};

inline DotPairs pairs_of(__m512i line) {
  return {_mm512_castsi512_ps(_mm512_and_si512(line, _mm512_set1_epi32(-65536))),
          _mm512_castsi512_ps(_mm512_slli_epi32(line, 16))};
}
/// Two numbers in all lanes.
inline DotPairs pair_of(const float* numbers) {
  return {_mm512_set1_ps(numbers[1]), _mm512_set1_ps(numbers[0])};
}
inline __m512 add_dots(__m512 sums, DotPairs a, DotPairs b) {
  return _mm512_fmadd_ps(a.even, b.even, _mm512_fmadd_ps(a.odd, b.odd, sums));
}
/// Rounds 16 numbers to bf16.
inline void store_numbers(__m512 numbers, float* to) {
  const __m256i rounded = (__m256i)_mm512_cvtneps_pbh(numbers);
  _mm512_storeu_si512(to, _mm512_slli_epi32(_mm512_cvtepu16_epi32(rounded), 16));
}

#else

using DotNumber = std::uint16_t;
using DotPairs = __m512bh;

inline DotPairs pairs_of(__m512i line) { return (__m512bh)line; }
inline DotPairs pair_of(const std::uint16_t* numbers) {
  int bits;
  __builtin_memcpy(&bits, numbers, sizeof bits);
  return (__m512bh)_mm512_set1_epi32(bits);
}
inline __m512 add_dots(__m512 sums, DotPairs a, DotPairs b) { return _mm512_dpbf16_ps(sums, a, b); }
inline void store_numbers(__m512 numbers, std::uint16_t* to) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), (__m256i)_mm512_cvtneps_pbh(numbers));
}

#endif

}  // namespace
}  // namespace KVHIVE_INSTRUCTIONS
}  // namespace kvhive
