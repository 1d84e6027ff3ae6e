// Calls no inline function of a header, for the reason given in packed_attention_avx512.hpp.

#include "kernels/cpu/packed_write_avx512.hpp"

#include <immintrin.h>

namespace kvhive {
namespace {

constexpr std::int32_t kLineBytes = 64;
constexpr std::int32_t kGroupTokens = 16;

__m512i row_at(const TokenRows& rows, std::int32_t token, std::int32_t dim) {
  return _mm512_loadu_si512(rows.first + token * rows.stride + 2 * std::int64_t{dim});
}

/// Stores a line and prefetches the line that will be read next.
void store(std::byte* to, __m512i line, Stores stores, const std::byte*& next) {
  _mm_prefetch(next, _MM_HINT_T0);
  next += kLineBytes;
  if (stores == Stores::streamed)
    _mm512_stream_si512(reinterpret_cast<__m512i*>(to), line);
  else
    _mm512_storeu_si512(to, line);
}

/// Loads 128 bits of each of the group's tokens, from dimension `dim` on: register i gets those of
/// tokens i, i + 4, i + 8 and i + 12. Loading them into these places saves half of the shuffles of
/// a transposition; the remaining ones stay within 128 bits.
void load_quarters(const TokenRows& rows, std::int32_t dim, __m512i (&quarters)[4]) {
  const auto chunk = [&](std::int32_t token) {
    return _mm_loadu_si128(
        reinterpret_cast<const __m128i*>(rows.first + token * rows.stride + 2 * std::int64_t{dim}));
  };
#pragma GCC unroll 4
  for (std::int32_t i = 0; i < 4; ++i) {
    __m512i quarter = _mm512_zextsi128_si512(chunk(i));
    quarter = _mm512_mask_broadcast_i32x4(quarter, 0x00f0, chunk(i + 4));
    quarter = _mm512_mask_broadcast_i32x4(quarter, 0x0f00, chunk(i + 8));
    quarters[i] = _mm512_mask_broadcast_i32x4(quarter, 0xf000, chunk(i + 12));
  }
}

}  // namespace

void write_key_group(const TokenRows& rows, std::byte* page, std::int32_t S, Stores stores) {
  const std::byte* next = rows.next;
  for (std::int32_t dim = 0; dim < rows.D; dim += 32, page += std::int64_t{S} * kLineBytes) {
    std::byte* to = page;
#pragma GCC unroll 4
    for (std::int32_t quarter = 0; quarter < 4; ++quarter, to += 4 * kLineBytes) {
      __m512i r[4];
      load_quarters(rows, dim + 8 * quarter, r);
      const __m512i low01 = _mm512_unpacklo_epi32(r[0], r[1]);
      const __m512i high01 = _mm512_unpackhi_epi32(r[0], r[1]);
      const __m512i low23 = _mm512_unpacklo_epi32(r[2], r[3]);
      const __m512i high23 = _mm512_unpackhi_epi32(r[2], r[3]);
      store(to, _mm512_unpacklo_epi64(low01, low23), stores, next);
      store(to + kLineBytes, _mm512_unpackhi_epi64(low01, low23), stores, next);
      store(to + 2 * kLineBytes, _mm512_unpacklo_epi64(high01, high23), stores, next);
      store(to + 3 * kLineBytes, _mm512_unpackhi_epi64(high01, high23), stores, next);
    }
  }
}

void write_value_group(const TokenRows& rows, std::byte* page, std::int32_t S, Stores stores) {
  const std::byte* next = rows.next;
  alignas(64) static const std::uint16_t kLow[32] = {0,  32, 1,  33, 2,  34, 3,  35, 4,  36, 5,
                                                     37, 6,  38, 7,  39, 8,  40, 9,  41, 10, 42,
                                                     11, 43, 12, 44, 13, 45, 14, 46, 15, 47};
  const __m512i low = _mm512_load_si512(kLow);
  const __m512i high = _mm512_add_epi16(low, _mm512_set1_epi16(16));
  const std::int64_t step = std::int64_t{S} / 2 * kLineBytes;
  for (std::int32_t t = 0; t < kGroupTokens; t += 2, page += kLineBytes) {
    std::byte* to = page;
    for (std::int32_t dim = 0; dim < rows.D; dim += 32, to += 2 * step) {
      const __m512i even = row_at(rows, t, dim), odd = row_at(rows, t + 1, dim);
      store(to, _mm512_permutex2var_epi16(even, low, odd), stores, next);
      store(to + step, _mm512_permutex2var_epi16(even, high, odd), stores, next);
    }
  }
}

}  // namespace kvhive
