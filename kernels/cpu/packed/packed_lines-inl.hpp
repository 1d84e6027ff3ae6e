#pragma once
// Loads lines of PageLayout::packed as bf16. Each Lines type loads two consecutive lines, which
// take kBytes each in memory on average. Of internal linkage (kernels/cpu/instructions/README.md).

#include "kernels/cpu/instructions/vectors.hpp"
#include "kernels/cpu/packed/packed_codes.hpp"

namespace kvhive {
namespace KVHIVE_INSTRUCTIONS {
namespace {

constexpr std::int32_t kLineBytes = 64;  ///< of a line of bf16

struct TwoLines {
  __m512i first;
  __m512i second;
};

struct Bf16Lines {
  static constexpr std::int64_t kBytes = kLineBytes;

  TwoLines load(const std::byte* at) const {
    return {_mm512_loadu_si512(at), _mm512_loadu_si512(at + kLineBytes)};
  }
};

/// Makes two lines from the lower and the upper bytes of 64 bf16.
TwoLines lines_of_halves(__m512i low, __m512i high) {
  return {_mm512_unpacklo_epi8(low, high), _mm512_unpackhi_epi8(low, high)};
}

/// `high` with the sign bits of `codes`.
__m512i with_signs(__m512i high, __m512i codes) {
  constexpr int kFirstOrBothOthers = 0xf8;
  return _mm512_ternarylogic_epi64(high, codes, _mm512_set1_epi8(-128), kFirstOrBothOthers);
}

/// fp8 is sign and magnitude: the magnitude is looked up.
struct Fp8Lines {
  static constexpr std::int64_t kBytes = kLineBytes / 2;

  explicit Fp8Lines(const Bf16OfCodes& table)
      : low{_mm512_loadu_si512(table.low), _mm512_loadu_si512(table.low + 64)},
        high{_mm512_loadu_si512(table.high), _mm512_loadu_si512(table.high + 64)} {}

  TwoLines load(const std::byte* at) const {
    const __m512i codes = _mm512_loadu_si512(at);
    return lines_of_halves(_mm512_permutex2var_epi8(low[0], codes, low[1]),
                           with_signs(_mm512_permutex2var_epi8(high[0], codes, high[1]), codes));
  }

  __m512i low[2], high[2];
};

/// The magnitude is looked up. 128 is looked up as 0; a real 0 is masked.
struct Int8Lines {
  static constexpr std::int64_t kBytes = kLineBytes / 2;

  explicit Int8Lines(const Bf16OfCodes& codes) : table(codes) {}

  TwoLines load(const std::byte* at) const {
    const __m512i codes = _mm512_loadu_si512(at);
    const __mmask64 some = _mm512_test_epi8_mask(codes, codes);
    const __m512i magnitudes = _mm512_abs_epi8(codes);
    return lines_of_halves(
        _mm512_maskz_permutex2var_epi8(some, table.low[0], magnitudes, table.low[1]),
        with_signs(_mm512_maskz_permutex2var_epi8(some, table.high[0], magnitudes, table.high[1]),
                   codes));
  }

  Fp8Lines table;
};

/// Converts `count` lines to bf16.
template <class Lines>
void widen_lines(const Lines& lines, const std::byte* from, std::int32_t count, std::byte* to) {
  for (std::int32_t i = 0; i < count; i += 2) {
    const TwoLines two = lines.load(from + i * Lines::kBytes);
    _mm512_storeu_si512(to + i * kLineBytes, two.first);
    _mm512_storeu_si512(to + (i + 1) * kLineBytes, two.second);
  }
}

}  // namespace
}  // namespace KVHIVE_INSTRUCTIONS
}  // namespace kvhive
