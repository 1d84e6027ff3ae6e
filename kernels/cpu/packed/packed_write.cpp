// Calls no inline function of a header, for the reason given in instructions/README.md.

#include "kernels/cpu/packed/packed_write.hpp"

#include "kernels/cpu/instructions/vectors.hpp"

namespace kvhive {
namespace KVHIVE_INSTRUCTIONS {
namespace {

constexpr std::int32_t kLineBytes = 64;
constexpr std::int32_t kGroupTokens = 16;

constexpr int kToL1 = 3, kToL2 = 2;  // localities of __builtin_prefetch

/// Prefetches kLines lines of the values that are read next.
template <std::int32_t kLines, int kLocality>
void prefetch(const std::byte*& next) {
#pragma GCC unroll 16
  for (std::int32_t i = 0; i < kLines; ++i, next += kLineBytes)
    __builtin_prefetch(next, 0, kLocality);
}

template <Stores kStores>
void store(std::byte* to, __m512i line) {
  if constexpr (kStores == Stores::streamed)
    _mm512_stream_si512(reinterpret_cast<__m512i*>(to), line);
  else
    _mm512_storeu_si512(to, line);
}

// ---- bf16 ----

/// Loads 128 bits of each of four tokens that lie `step` bytes apart. Loading them into one
/// register saves half of the shuffles of a transposition; the remaining ones stay within 128 bits.
__m512i load_quarter(const std::byte* at, std::int64_t step) {
  const auto chunk = [&](std::int64_t i) {
    return _mm_loadu_si128(reinterpret_cast<const __m128i*>(at + i * step));
  };
  __m512i quarter = _mm512_zextsi128_si512(chunk(0));
  quarter = _mm512_mask_broadcast_i32x4(quarter, 0x00f0, chunk(1));
  quarter = _mm512_mask_broadcast_i32x4(quarter, 0x0f00, chunk(2));
  return _mm512_mask_broadcast_i32x4(quarter, 0xf000, chunk(3));
}

template <Stores kStores, WriteWay kWay>
void write_keys(const TokenRows& rows, std::byte* page, std::int32_t S) {
  const std::int64_t stride = rows.stride;
  const std::byte* next = rows.next;
  for (std::int32_t dim = 0; dim < rows.D; dim += 32, page += std::int64_t{S} * kLineBytes) {
    std::byte* to = page;
#pragma GCC unroll 4
    for (std::int32_t quarter = 0; quarter < 4; ++quarter) {
      const std::byte* from = rows.first + 2 * (dim + 8 * quarter);
      if constexpr (kWay == WriteWay::by_lines) prefetch<4, kToL2>(next);
      const __m512i r0 = load_quarter(from, 4 * stride);
      const __m512i r1 = load_quarter(from + stride, 4 * stride);
      const __m512i r2 = load_quarter(from + 2 * stride, 4 * stride);
      const __m512i r3 = load_quarter(from + 3 * stride, 4 * stride);
      const __m512i low01 = _mm512_unpacklo_epi32(r0, r1);
      const __m512i high01 = _mm512_unpackhi_epi32(r0, r1);
      const __m512i low23 = _mm512_unpacklo_epi32(r2, r3);
      const __m512i high23 = _mm512_unpackhi_epi32(r2, r3);
      const __m512i lines[4] = {
          _mm512_unpacklo_epi64(low01, low23), _mm512_unpackhi_epi64(low01, low23),
          _mm512_unpacklo_epi64(high01, high23), _mm512_unpackhi_epi64(high01, high23)};
#pragma GCC unroll 4
      for (const __m512i line : lines) {
        if constexpr (kWay == WriteWay::by_tokens) prefetch<1, kToL1>(next);
        store<kStores>(to, line);
        to += kLineBytes;
      }
    }
  }
}

/// Values of two tokens alternate in a line of V. Of 32 dimensions, the first 16.
__m512i low_values(__m512i even, __m512i odd) {
  alignas(64) static const std::uint16_t kPlaces[32] = {0,  32, 1,  33, 2,  34, 3,  35, 4,  36, 5,
                                                        37, 6,  38, 7,  39, 8,  40, 9,  41, 10, 42,
                                                        11, 43, 12, 44, 13, 45, 14, 46, 15, 47};
  return _mm512_permutex2var_epi16(even, _mm512_load_si512(kPlaces), odd);
}

__m512i high_values(__m512i even, __m512i odd) {
  alignas(64) static const std::uint16_t kPlaces[32] = {16, 48, 17, 49, 18, 50, 19, 51, 20, 52, 21,
                                                        53, 22, 54, 23, 55, 24, 56, 25, 57, 26, 58,
                                                        27, 59, 28, 60, 29, 61, 30, 62, 31, 63};
  return _mm512_permutex2var_epi16(even, _mm512_load_si512(kPlaces), odd);
}

template <Stores kStores>
void write_values_by_tokens(const TokenRows& rows, std::byte* page, std::int32_t S) {
  const std::int64_t step = std::int64_t{S} / 2 * kLineBytes;  // to the next 16 dimensions
  const std::byte* next = rows.next;
  const std::byte* even = rows.first;
  for (std::int32_t t = 0; t < kGroupTokens; t += 2, even += 2 * rows.stride, page += kLineBytes) {
    std::byte* to = page;
    for (std::int32_t dim = 0; dim < rows.D; dim += 32, to += 2 * step) {
      const __m512i a = _mm512_loadu_si512(even + 2 * dim);
      const __m512i b = _mm512_loadu_si512(even + rows.stride + 2 * dim);
      prefetch<2, kToL1>(next);
      store<kStores>(to, low_values(a, b));
      store<kStores>(to + step, high_values(a, b));
    }
  }
}

/// Stores eight adjacent lines at a time, hence loads 32 dimensions of all tokens first.
template <Stores kStores>
void write_values_by_lines(const TokenRows& rows, std::byte* page, std::int32_t S) {
  const std::int64_t stride = rows.stride;
  const std::byte* next = rows.next;
  const std::int64_t step = std::int64_t{S} / 2 * kLineBytes;
  const std::byte* from = rows.first;
  const std::byte* end = from + 2 * rows.D;
  for (; from != end; from += kLineBytes, page += 2 * step) {
    __m512i even[kGroupTokens / 2], odd[kGroupTokens / 2];
#pragma GCC unroll 8
    for (std::int32_t i = 0; i < kGroupTokens / 2; ++i) {
      prefetch<2, kToL2>(next);
      even[i] = _mm512_loadu_si512(from + 2 * i * stride);
      odd[i] = _mm512_loadu_si512(from + (2 * i + 1) * stride);
    }
#pragma GCC unroll 8
    for (std::int32_t i = 0; i < kGroupTokens / 2; ++i)
      store<kStores>(page + i * kLineBytes, low_values(even[i], odd[i]));
#pragma GCC unroll 8
    for (std::int32_t i = 0; i < kGroupTokens / 2; ++i)
      store<kStores>(page + step + i * kLineBytes, high_values(even[i], odd[i]));
  }
}

// ---- f32 ----

/// Loads 16 values and rounds as bf16_of_float does: to nearest, ties to even; NaN stays NaN. Not
/// with VCVTNEPS2BF16, which makes zeros of subnormal numbers. The upper halves hold the results,
/// the lower ones mean nothing.
__m512i load_rounded(const std::byte* at) {
  const __m512i bits = _mm512_loadu_si512(at);
  const __m512 value = _mm512_castsi512_ps(bits);
  const __mmask16 is_nan = _mm512_cmp_ps_mask(value, value, _CMP_UNORD_Q);
  const __m512i last = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  const __m512i sum = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), last);
  return _mm512_mask_or_epi32(sum, is_nan, bits, _mm512_set1_epi32(0x400000));
}

/// Four registers of four chunks of 128 bits, transposed.
void transpose_chunks(__m512i (&r)[4]) {
  const __m512i even01 = _mm512_shuffle_i32x4(r[0], r[1], 0x88);
  const __m512i odd01 = _mm512_shuffle_i32x4(r[0], r[1], 0xdd);
  const __m512i even23 = _mm512_shuffle_i32x4(r[2], r[3], 0x88);
  const __m512i odd23 = _mm512_shuffle_i32x4(r[2], r[3], 0xdd);
  r[0] = _mm512_shuffle_i32x4(even01, even23, 0x88);
  r[1] = _mm512_shuffle_i32x4(odd01, odd23, 0x88);
  r[2] = _mm512_shuffle_i32x4(even01, even23, 0xdd);
  r[3] = _mm512_shuffle_i32x4(odd01, odd23, 0xdd);
}

/// The 16 dimensions of two tokens as bf16: chunks of 4 dimensions of the one and 4 of the other.
__m512i load_two_tokens(const std::byte* at, std::int64_t stride) {
  return _mm512_packus_epi32(_mm512_srli_epi32(load_rounded(at), 16),
                             _mm512_srli_epi32(load_rounded(at + stride), 16));
}

/// Loads whole lines: with a stride of 4 KiB (8 heads of 128), L1 cannot keep 16 of them for a
/// second load.
template <Stores kStores>
void write_float_keys(const TokenRows& rows, std::byte* page, std::int32_t S) {
  const std::int64_t stride = rows.stride;
  const std::byte* next = rows.next;
  for (std::int32_t dim = 0; dim < rows.D; dim += 16) {
    const std::byte* from = rows.first + 4 * dim;
    __m512i even[4], odd[4];  // pairs of dimensions of 4 tokens each
#pragma GCC unroll 4
    for (std::int32_t i = 0; i < 4; ++i, from += 4 * stride) {
      const __m512 low = _mm512_castsi512_ps(load_two_tokens(from, stride));
      const __m512 high = _mm512_castsi512_ps(load_two_tokens(from + 2 * stride, stride));
      even[i] = _mm512_castps_si512(_mm512_shuffle_ps(low, high, 0x88));
      odd[i] = _mm512_castps_si512(_mm512_shuffle_ps(low, high, 0xdd));
    }
    transpose_chunks(even);
    transpose_chunks(odd);
    std::byte* to = page + (std::int64_t{dim} / 32 * S + dim % 32 / 2) * kLineBytes;
#pragma GCC unroll 4
    for (std::int32_t i = 0; i < 4; ++i, to += 2 * kLineBytes) {
      prefetch<4, kToL2>(next);
      store<kStores>(to, even[i]);
      store<kStores>(to + kLineBytes, odd[i]);
    }
  }
}

template <Stores kStores>
void write_float_values(const TokenRows& rows, std::byte* page, std::int32_t S) {
  const std::int64_t stride = rows.stride;
  const std::byte* next = rows.next;
  for (std::int32_t dim = 0; dim < rows.D; dim += 16, page += std::int64_t{S} / 2 * kLineBytes) {
    const std::byte* from = rows.first + 4 * dim;
#pragma GCC unroll 8
    for (std::int32_t i = 0; i < kGroupTokens / 2; ++i, from += 2 * stride) {
      prefetch<2, kToL2>(next);
      const __m512i even = _mm512_srli_epi32(load_rounded(from), 16);
      store<kStores>(page + i * kLineBytes,
                     _mm512_mask_blend_epi16(0xaaaaaaaa, even, load_rounded(from + stride)));
    }
  }
}

template <Stores kStores>
void write_key_rows(const TokenRows& rows, std::byte* page, std::int32_t S, WriteWay way) {
  way == WriteWay::by_lines ? write_keys<kStores, WriteWay::by_lines>(rows, page, S)
                            : write_keys<kStores, WriteWay::by_tokens>(rows, page, S);
}

template <Stores kStores>
void write_value_rows(const TokenRows& rows, std::byte* page, std::int32_t S, WriteWay way) {
  way == WriteWay::by_lines ? write_values_by_lines<kStores>(rows, page, S)
                            : write_values_by_tokens<kStores>(rows, page, S);
}

void write_key_group(const TokenRows& rows, std::byte* page, std::int32_t S, Stores stores,
                     WriteWay way) {
  stores == Stores::streamed ? write_key_rows<Stores::streamed>(rows, page, S, way)
                             : write_key_rows<Stores::cached>(rows, page, S, way);
}

void write_value_group(const TokenRows& rows, std::byte* page, std::int32_t S, Stores stores,
                       WriteWay way) {
  stores == Stores::streamed ? write_value_rows<Stores::streamed>(rows, page, S, way)
                             : write_value_rows<Stores::cached>(rows, page, S, way);
}

void write_float_key_group(const TokenRows& rows, std::byte* page, std::int32_t S, Stores stores,
                           WriteWay) {
  stores == Stores::streamed ? write_float_keys<Stores::streamed>(rows, page, S)
                             : write_float_keys<Stores::cached>(rows, page, S);
}

void write_float_value_group(const TokenRows& rows, std::byte* page, std::int32_t S, Stores stores,
                             WriteWay) {
  stores == Stores::streamed ? write_float_values<Stores::streamed>(rows, page, S)
                             : write_float_values<Stores::cached>(rows, page, S);
}

}  // namespace

const PackedWriters kPackedWriters{write_key_group, write_value_group, write_float_key_group,
                                   write_float_value_group};

}  // namespace KVHIVE_INSTRUCTIONS
}  // namespace kvhive
