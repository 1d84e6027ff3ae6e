// No inline function of a header is called here: see packed_attention_avx512.hpp.

#include "kernels/cpu/packed_write_avx512.hpp"

#include <immintrin.h>

namespace kvhive {
namespace {

constexpr std::int32_t kLineBytes = 64;
constexpr std::int32_t kGroupTokens = 16;

__m512i row_at(const TokenRows& rows, std::int32_t token, std::int32_t dim) {
  return _mm512_loadu_si512(rows.first + token * rows.stride + 2 * std::int64_t{dim});
}

/// Stores a line and fetches the next one that is to be read.
void store(std::byte* to, __m512i line, Stores stores, const std::byte*& next) {
  _mm_prefetch(next, _MM_HINT_T0);
  next += kLineBytes;
  if (stores == Stores::streamed)
    _mm512_stream_si512(reinterpret_cast<__m512i*>(to), line);
  else
    _mm512_storeu_si512(to, line);
}

/// Rows of 16 units of 32 bits become columns.
void transpose(__m512i (&r)[16]) {
  __m512i t[16];
  // Within 128 bits: 2 x 2 units, then 4 x 4.
#pragma GCC unroll 8
  for (int i = 0; i < 16; i += 2) {
    t[i] = _mm512_unpacklo_epi32(r[i], r[i + 1]);
    t[i + 1] = _mm512_unpackhi_epi32(r[i], r[i + 1]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 16; i += 4) {
    r[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
    r[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
    r[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
    r[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
  }
  // Then 4 x 4 of 128 bits.
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    const __m512i even_low = _mm512_shuffle_i32x4(r[i], r[i + 4], 0x88);
    const __m512i odd_low = _mm512_shuffle_i32x4(r[i], r[i + 4], 0xdd);
    const __m512i even_high = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0x88);
    const __m512i odd_high = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0xdd);
    t[i] = _mm512_shuffle_i32x4(even_low, even_high, 0x88);
    t[i + 4] = _mm512_shuffle_i32x4(odd_low, odd_high, 0x88);
    t[i + 8] = _mm512_shuffle_i32x4(even_low, even_high, 0xdd);
    t[i + 12] = _mm512_shuffle_i32x4(odd_low, odd_high, 0xdd);
  }
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i) r[i] = t[i];
}

}  // namespace

void write_key_group(const TokenRows& rows, std::byte* page, std::int32_t S, Stores stores) {
  const std::byte* next = rows.next;
  for (std::int32_t dim = 0; dim < rows.D; dim += 32, page += std::int64_t{S} * kLineBytes) {
    __m512i lines[kGroupTokens];  // of tokens, then of pairs of dims
#pragma GCC unroll 16
    for (std::int32_t t = 0; t < kGroupTokens; ++t) lines[t] = row_at(rows, t, dim);
    transpose(lines);
#pragma GCC unroll 16
    for (std::int32_t pair = 0; pair < 16; ++pair)
      store(page + pair * kLineBytes, lines[pair], stores, next);
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
