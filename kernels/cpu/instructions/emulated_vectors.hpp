#pragma once
// The AVX-512 intrinsics that the kernels use, in plain C++. Included by vectors.hpp. Each has the
// bits of the instruction (payloads of NaN aside); a kernel that uses a new one adds it here.

#include <cstdint>
#include <cstring>

#include "kernels/cpu/instructions/emulated_floats.hpp"

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wpsabi"

namespace kvhive {
namespace emulated_vectors {

#define KVHIVE_LANES static inline __attribute__((always_inline))

using Ints = std::int32_t __attribute__((vector_size(64)));
using Longs = std::int64_t __attribute__((vector_size(64)));
using Shorts = std::uint16_t __attribute__((vector_size(64)));
using Bytes = std::uint8_t __attribute__((vector_size(64)));

template <class To, class From>
KVHIVE_LANES To as(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  __builtin_memcpy(&to, &from, sizeof to);
  return to;
}

template <class F>
KVHIVE_LANES __m512 each(F&& f) {
  __m512 r{};
  for (int i = 0; i < 16; ++i) r[i] = f(i);
  return r;
}

KVHIVE_LANES __m512 zero() { return __m512{}; }
KVHIVE_LANES __m512i zero_bits() { return __m512i{}; }
KVHIVE_LANES __m512 all_of(float x) {
  return each([&](int) { return x; });
}
KVHIVE_LANES __m512i all_ints(int x) {
  Ints r{};
  for (int i = 0; i < 16; ++i) r[i] = x;
  return as<__m512i>(r);
}
KVHIVE_LANES __m512i all_shorts(int x) {
  return as<__m512i>(Shorts{} + static_cast<std::uint16_t>(x));
}
KVHIVE_LANES __m512i all_bytes(int x) {
  return as<__m512i>(Bytes{} + static_cast<std::uint8_t>(x));
}

template <class Vector>
KVHIVE_LANES Vector load(const void* from) {
  Vector r;
  __builtin_memcpy(&r, from, sizeof r);
  return r;
}
template <class Vector>
KVHIVE_LANES void store(void* to, Vector x) {
  __builtin_memcpy(to, &x, sizeof x);
}
KVHIVE_LANES __m512 load_some(std::uint16_t lanes, const float* from) {
  return each([&](int i) { return (lanes >> i & 1) != 0 ? from[i] : 0.0f; });
}
KVHIVE_LANES void store_some(float* to, std::uint16_t lanes, __m512 x) {
  for (int i = 0; i < 16; ++i)
    if ((lanes >> i & 1) != 0) to[i] = x[i];
}
KVHIVE_LANES __m512i load_some_shorts(std::uint32_t lanes, const void* from) {
  Shorts r{};
  for (int i = 0; i < 32; ++i)
    if ((lanes >> i & 1) != 0) {
      std::uint16_t x;
      __builtin_memcpy(&x, static_cast<const char*>(from) + 2 * i, sizeof x);
      r[i] = x;
    }
  return as<__m512i>(r);
}
KVHIVE_LANES void store_some_shorts(void* to, std::uint16_t lanes, __m256i x) {
  std::uint16_t values[16];
  __builtin_memcpy(values, &x, sizeof values);
  for (int i = 0; i < 16; ++i)
    if ((lanes >> i & 1) != 0)
      __builtin_memcpy(static_cast<char*>(to) + 2 * i, &values[i], sizeof values[i]);
}

KVHIVE_LANES __m512 add(__m512 a, __m512 b) { return a + b; }
KVHIVE_LANES __m512 subtract(__m512 a, __m512 b) { return a - b; }
KVHIVE_LANES __m512 multiply(__m512 a, __m512 b) { return a * b; }
KVHIVE_LANES __m512 divide(__m512 a, __m512 b) { return a / b; }
KVHIVE_LANES __m512 multiply_add(__m512 a, __m512 b, __m512 c) {
  return each([&](int i) { return emulated_floats::fused(a[i], b[i], c[i]); });
}
/// MAXPS: of two that cannot be ordered, the second.
KVHIVE_LANES __m512 greater(__m512 a, __m512 b) {
  return each([&](int i) { return a[i] > b[i] ? a[i] : b[i]; });
}
KVHIVE_LANES __m512 some_greater(__m512 other, std::uint16_t lanes, __m512 a, __m512 b) {
  return each([&](int i) { return (lanes >> i & 1) == 0 ? other[i] : a[i] > b[i] ? a[i] : b[i]; });
}
KVHIVE_LANES __m512 keep(std::uint16_t lanes, __m512 x) {
  return each([&](int i) { return (lanes >> i & 1) != 0 ? x[i] : 0.0f; });
}
/// Lanes that are not less, or cannot be ordered.
template <int kHow>
KVHIVE_LANES std::uint16_t compared(__m512 a, __m512 b) {
  static_assert(kHow == _CMP_UNORD_Q, "add the comparison here");
  std::uint16_t lanes = 0;
  for (int i = 0; i < 16; ++i)
    lanes = static_cast<std::uint16_t>(lanes | (__builtin_isunordered(a[i], b[i]) ? 1u << i : 0u));
  return lanes;
}
KVHIVE_LANES __m512i add_ints(__m512i a, __m512i b) {
  using Unsigned = std::uint32_t __attribute__((vector_size(64)));
  return as<__m512i>(as<Unsigned>(a) + as<Unsigned>(b));
}
KVHIVE_LANES __m512i shifted_up(__m512i x, int bits) { return as<__m512i>(as<Ints>(x) << bits); }
KVHIVE_LANES __m512i ints_of_shorts(__m256i x) {
  std::uint16_t shorts[16];
  __builtin_memcpy(shorts, &x, sizeof shorts);
  Ints r{};
  for (int i = 0; i < 16; ++i) r[i] = shorts[i];
  return as<__m512i>(r);
}
KVHIVE_LANES __m512i shifted_down(__m512i x, int bits) {
  using Unsigned = std::uint32_t __attribute__((vector_size(64)));
  return as<__m512i>(as<Unsigned>(x) >> bits);
}
KVHIVE_LANES __m512i some_either(__m512i other, std::uint16_t lanes, __m512i a, __m512i b) {
  Ints r = as<Ints>(other);
  const Ints both = as<Ints>(a | b);
  for (int i = 0; i < 16; ++i)
    if ((lanes >> i & 1) != 0) r[i] = both[i];
  return as<__m512i>(r);
}
KVHIVE_LANES __m512i blended(std::uint32_t lanes, __m512i a, __m512i b) {
  Shorts r = as<Shorts>(a);
  const Shorts other = as<Shorts>(b);
  for (int i = 0; i < 32; ++i)
    if ((lanes >> i & 1) != 0) r[i] = other[i];
  return as<__m512i>(r);
}
/// In each 128 bits four elements of `a`, then four of `b`; bounded as signed numbers.
KVHIVE_LANES __m512i packed_to_shorts(__m512i a, __m512i b) {
  const Ints from[] = {as<Ints>(a), as<Ints>(b)};
  Shorts r{};
  for (int i = 0; i < 32; ++i) {
    const std::int32_t x = from[i % 8 / 4][i / 8 * 4 + i % 4];
    r[i] = static_cast<std::uint16_t>(x < 0 ? 0 : x > 0xffff ? 0xffff : x);
  }
  return as<__m512i>(r);
}
/// In each 128 bits two elements of `a`, then two of `b`, chosen by two bits each.
KVHIVE_LANES __m512 shuffled(__m512 a, __m512 b, int choice) {
  return each([&](int i) {
    const int from = i / 4 * 4 + (choice >> 2 * (i % 4) & 3);
    return i % 4 < 2 ? a[from] : b[from];
  });
}
KVHIVE_LANES __m512 nearest_whole(__m512 x) {
  return each([&](int i) { return __builtin_rintf(x[i]); });
}
KVHIVE_LANES __m512 times_power(std::uint16_t lanes, __m512 x, __m512 exponent) {
  return each([&](int i) {
    if ((lanes >> i & 1) == 0) return 0.0f;
    if (exponent[i] != exponent[i]) return exponent[i];
    return __builtin_ldexpf(x[i], static_cast<int>(__builtin_floorf(exponent[i])));
  });
}
/// In the order in which gcc and clang add up halves.
KVHIVE_LANES float sum_of(__m512 x) {
  float r[16];
  __builtin_memcpy(r, &x, sizeof r);
  for (int half = 8; half > 0; half /= 2)
    for (int i = 0; i < half; ++i) r[i] += r[i + half];
  return r[0];
}
KVHIVE_LANES float greatest_of(__m512 x) {
  float r[16];
  __builtin_memcpy(r, &x, sizeof r);
  for (int half = 8; half > 0; half /= 2)
    for (int i = 0; i < half; ++i) r[i] = r[i] > r[i + half] ? r[i] : r[i + half];
  return r[0];
}

/// VCVTNEPS2BF16.
KVHIVE_LANES __m256i narrowed(__m512 x) {
  std::uint16_t r[16];
  for (int i = 0; i < 16; ++i) r[i] = emulated_floats::narrowed(x[i]);
  __m256i result;
  __builtin_memcpy(&result, r, sizeof result);
  return result;
}
/// VCVTNE2PS2BF16: the second argument comes first.
KVHIVE_LANES __m512i narrowed(__m512 high, __m512 low) {
  Shorts r{};
  for (int i = 0; i < 16; ++i) {
    r[i] = emulated_floats::narrowed(low[i]);
    r[16 + i] = emulated_floats::narrowed(high[i]);
  }
  return as<__m512i>(r);
}
/// VDPBF16PS: first the odd elements, then the even ones, each by a fused multiply-add; denormals
/// count as 0, going in and coming out.
template <class A, class B>
KVHIVE_LANES __m512 dot_pairs(__m512 sums, A a, B b) {
  using namespace emulated_floats;
  const Shorts x = as<Shorts>(a), y = as<Shorts>(b);
  return each([&](int i) {
    const float odd = without_denormal(
        fused(widened(x[2 * i + 1]), widened(y[2 * i + 1]), without_denormal(sums[i])));
    return without_denormal(fused(widened(x[2 * i]), widened(y[2 * i]), odd));
  });
}

/// PUNPCK: the lower or upper halves of each 128 bits, element by element in turn.
template <class Element, bool kHigh, class Vector>
KVHIVE_LANES Vector unpacked(Vector a, Vector b) {
  constexpr int kCount = 16 / sizeof(Element);  // in 128 bits
  Element x[4 * kCount], y[4 * kCount], r[4 * kCount];
  __builtin_memcpy(x, &a, 64);
  __builtin_memcpy(y, &b, 64);
  for (int part = 0; part < 4; ++part)
    for (int i = 0; i < kCount / 2; ++i) {
      const int from = part * kCount + i + (kHigh ? kCount / 2 : 0);
      r[part * kCount + 2 * i] = x[from];
      r[part * kCount + 2 * i + 1] = y[from];
    }
  Vector result;
  __builtin_memcpy(&result, r, sizeof result);
  return result;
}
/// VPERMT2: lanes of two tables, by the lower bits of `index`.
template <class Elements>
KVHIVE_LANES __m512i looked_up(__m512i low, __m512i index, __m512i high) {
  const auto a = as<Elements>(low), b = as<Elements>(high), at = as<Elements>(index);
  constexpr int kCount = 64 / sizeof(a[0]);
  Elements r{};
  for (int i = 0; i < kCount; ++i) {
    const unsigned place = static_cast<unsigned>(at[i]) & (2 * kCount - 1);
    r[i] = place < kCount ? a[place] : b[place - kCount];
  }
  return as<__m512i>(r);
}
KVHIVE_LANES __m512i keep_bytes(std::uint64_t lanes, __m512i x) {
  Bytes r = as<Bytes>(x);
  for (int i = 0; i < 64; ++i)
    if ((lanes >> i & 1) == 0) r[i] = 0;
  return as<__m512i>(r);
}
KVHIVE_LANES __m512i keep_shorts(std::uint32_t lanes, __m512i x) {
  Shorts r = as<Shorts>(x);
  for (int i = 0; i < 32; ++i)
    if ((lanes >> i & 1) == 0) r[i] = 0;
  return as<__m512i>(r);
}
KVHIVE_LANES std::uint64_t common_bits(__m512i a, __m512i b) {
  const Bytes both = as<Bytes>(a & b);
  std::uint64_t lanes = 0;
  for (int i = 0; i < 64; ++i) lanes |= std::uint64_t{both[i] != 0} << i;
  return lanes;
}
KVHIVE_LANES __m512i magnitudes(__m512i x) {
  Bytes r = as<Bytes>(x);
  for (int i = 0; i < 64; ++i) r[i] = r[i] >= 128 ? static_cast<std::uint8_t>(-r[i]) : r[i];
  return as<__m512i>(r);
}
/// VPTERNLOG: bit (a, b, c) of `table`.
KVHIVE_LANES __m512i by_table(__m512i a, __m512i b, __m512i c, int table) {
  __m512i r{};
  for (int i = 0; i < 8; ++i)
    if ((table >> i & 1) != 0)
      r |= ((i & 4) != 0 ? a : ~a) & ((i & 2) != 0 ? b : ~b) & ((i & 1) != 0 ? c : ~c);
  return r;
}
KVHIVE_LANES std::uint32_t equal_shorts(__m512i a, __m512i b) {
  const Shorts x = as<Shorts>(a), y = as<Shorts>(b);
  std::uint32_t lanes = 0;
  for (int i = 0; i < 32; ++i) lanes |= std::uint32_t{x[i] == y[i]} << i;
  return lanes;
}
KVHIVE_LANES __m512i add_shorts(__m512i a, __m512i b) {
  return as<__m512i>(as<Shorts>(a) + as<Shorts>(b));
}
/// VSHUFI32X4: 128 bits of a, twice, then of b, twice.
KVHIVE_LANES __m512i quarters(__m512i a, __m512i b, int choice) {
  const auto x = as<Longs>(a), y = as<Longs>(b);
  Longs r{};
  for (int i = 0; i < 4; ++i) {
    const int from = choice >> (2 * i) & 3;
    r[2 * i] = i < 2 ? x[2 * from] : y[2 * from];
    r[2 * i + 1] = i < 2 ? x[2 * from + 1] : y[2 * from + 1];
  }
  return as<__m512i>(r);
}
KVHIVE_LANES __m512i first_quarter(__m128i x) {
  Longs r{};
  __builtin_memcpy(&r, &x, sizeof x);
  return as<__m512i>(r);
}
KVHIVE_LANES __m512i with_quarters(__m512i other, std::uint16_t lanes, __m128i x) {
  std::int32_t from[4], to[16];
  __builtin_memcpy(from, &x, sizeof from);
  __builtin_memcpy(to, &other, sizeof to);
  for (int i = 0; i < 16; ++i)
    if ((lanes >> i & 1) != 0) to[i] = from[i % 4];
  __m512i r;
  __builtin_memcpy(&r, to, sizeof r);
  return r;
}
KVHIVE_LANES __m256 half(__m512 x, int which) {
  __m256 r;
  __builtin_memcpy(&r, reinterpret_cast<const char*>(&x) + 32 * which, sizeof r);
  return r;
}

#undef KVHIVE_LANES

}  // namespace emulated_vectors
}  // namespace kvhive

#pragma GCC diagnostic pop

// In place of the intrinsics. A prefetch stays what it is.

#undef _mm512_setzero_ps
#undef _mm512_setzero_si512
#undef _mm512_set1_ps
#undef _mm512_set1_epi32
#undef _mm512_set1_epi16
#undef _mm512_set1_epi8
#undef _mm512_broadcastss_ps
#undef _mm512_load_ps
#undef _mm512_loadu_ps
#undef _mm512_load_si512
#undef _mm512_loadu_si512
#undef _mm512_store_ps
#undef _mm512_storeu_ps
#undef _mm512_store_si512
#undef _mm512_storeu_si512
#undef _mm512_stream_si512
#undef _mm512_stream_ps
#undef _mm512_maskz_loadu_ps
#undef _mm512_mask_storeu_ps
#undef _mm512_maskz_loadu_epi16
#undef _mm256_mask_storeu_epi16
#undef _mm512_add_ps
#undef _mm512_sub_ps
#undef _mm512_mul_ps
#undef _mm512_div_ps
#undef _mm512_fmadd_ps
#undef _mm512_max_ps
#undef _mm512_mask_max_ps
#undef _mm512_maskz_mov_ps
#undef _mm512_maskz_mul_ps
#undef _mm512_cmp_ps_mask
#undef _mm512_roundscale_ps
#undef _mm512_scalef_ps
#undef _mm512_maskz_scalef_ps
#undef _mm512_reduce_add_ps
#undef _mm512_reduce_max_ps
#undef _mm512_cvtneps_pbh
#undef _mm512_cvtne2ps_pbh
#undef _mm512_dpbf16_ps
#undef _mm512_unpacklo_ps
#undef _mm512_unpackhi_ps
#undef _mm512_unpacklo_epi8
#undef _mm512_unpackhi_epi8
#undef _mm512_unpacklo_epi32
#undef _mm512_unpackhi_epi32
#undef _mm512_unpacklo_epi64
#undef _mm512_unpackhi_epi64
#undef _mm512_permutex2var_epi8
#undef _mm512_permutex2var_epi16
#undef _mm512_maskz_permutex2var_epi8
#undef _mm512_maskz_mov_epi16
#undef _mm512_test_epi8_mask
#undef _mm512_abs_epi8
#undef _mm512_ternarylogic_epi64
#undef _mm512_add_epi16
#undef _mm512_and_si512
#undef _mm512_cmpeq_epi16_mask
#undef _mm512_shuffle_i32x4
#undef _mm512_zextsi128_si512
#undef _mm512_mask_broadcast_i32x4
#undef _mm512_castps512_ps256
#undef _mm512_extractf32x8_ps
#undef _mm512_add_epi32
#undef _mm512_castps_si512
#undef _mm512_castsi512_ps
#undef _mm512_mask_blend_epi16
#undef _mm512_mask_or_epi32
#undef _mm512_packus_epi32
#undef _mm512_shuffle_ps
#undef _mm512_srli_epi32
#undef _mm512_slli_epi32
#undef _mm512_cvtepu16_epi32

#define _mm512_slli_epi32(x, bits) ::kvhive::emulated_vectors::shifted_up(x, bits)
#define _mm512_cvtepu16_epi32(x) ::kvhive::emulated_vectors::ints_of_shorts(x)
#define _mm512_setzero_ps() ::kvhive::emulated_vectors::zero()
#define _mm512_setzero_si512() ::kvhive::emulated_vectors::zero_bits()
#define _mm512_set1_ps(x) ::kvhive::emulated_vectors::all_of(x)
#define _mm512_set1_epi32(x) ::kvhive::emulated_vectors::all_ints(x)
#define _mm512_set1_epi16(x) ::kvhive::emulated_vectors::all_shorts(x)
#define _mm512_set1_epi8(x) ::kvhive::emulated_vectors::all_bytes(x)
#define _mm512_broadcastss_ps(x) ::kvhive::emulated_vectors::all_of((x)[0])
#define _mm512_load_ps(p) ::kvhive::emulated_vectors::load<__m512>(p)
#define _mm512_loadu_ps(p) ::kvhive::emulated_vectors::load<__m512>(p)
#define _mm512_load_si512(p) ::kvhive::emulated_vectors::load<__m512i>(p)
#define _mm512_loadu_si512(p) ::kvhive::emulated_vectors::load<__m512i>(p)
#define _mm512_store_ps(p, x) ::kvhive::emulated_vectors::store(p, x)
#define _mm512_storeu_ps(p, x) ::kvhive::emulated_vectors::store(p, x)
#define _mm512_store_si512(p, x) ::kvhive::emulated_vectors::store(p, x)
#define _mm512_storeu_si512(p, x) ::kvhive::emulated_vectors::store(p, x)
#define _mm512_stream_si512(p, x) ::kvhive::emulated_vectors::store(p, x)
#define _mm512_stream_ps(p, x) ::kvhive::emulated_vectors::store(p, x)
#define _mm512_maskz_loadu_ps(m, p) ::kvhive::emulated_vectors::load_some(m, p)
#define _mm512_mask_storeu_ps(p, m, x) ::kvhive::emulated_vectors::store_some(p, m, x)
#define _mm512_maskz_loadu_epi16(m, p) ::kvhive::emulated_vectors::load_some_shorts(m, p)
#define _mm256_mask_storeu_epi16(p, m, x) ::kvhive::emulated_vectors::store_some_shorts(p, m, x)
#define _mm512_add_ps(a, b) ::kvhive::emulated_vectors::add(a, b)
#define _mm512_sub_ps(a, b) ::kvhive::emulated_vectors::subtract(a, b)
#define _mm512_mul_ps(a, b) ::kvhive::emulated_vectors::multiply(a, b)
#define _mm512_div_ps(a, b) ::kvhive::emulated_vectors::divide(a, b)
#define _mm512_fmadd_ps(a, b, c) ::kvhive::emulated_vectors::multiply_add(a, b, c)
#define _mm512_max_ps(a, b) ::kvhive::emulated_vectors::greater(a, b)
#define _mm512_mask_max_ps(o, m, a, b) ::kvhive::emulated_vectors::some_greater(o, m, a, b)
#define _mm512_maskz_mov_ps(m, x) ::kvhive::emulated_vectors::keep(m, x)
#define _mm512_maskz_mul_ps(m, a, b) \
  ::kvhive::emulated_vectors::keep(m, ::kvhive::emulated_vectors::multiply(a, b))
#define _mm512_cmp_ps_mask(a, b, c) ::kvhive::emulated_vectors::compared<c>(a, b)
#define _mm512_roundscale_ps(x, how) ::kvhive::emulated_vectors::nearest_whole(x)
#define _mm512_scalef_ps(x, e) ::kvhive::emulated_vectors::times_power(0xffff, x, e)
#define _mm512_maskz_scalef_ps(m, x, e) ::kvhive::emulated_vectors::times_power(m, x, e)
#define _mm512_reduce_add_ps(x) ::kvhive::emulated_vectors::sum_of(x)
#define _mm512_reduce_max_ps(x) ::kvhive::emulated_vectors::greatest_of(x)
#define _mm512_cvtneps_pbh(x) ::kvhive::emulated_vectors::narrowed(x)
#define _mm512_cvtne2ps_pbh(a, b) ::kvhive::emulated_vectors::narrowed(a, b)
#define _mm512_dpbf16_ps(s, a, b) ::kvhive::emulated_vectors::dot_pairs(s, a, b)
#define _mm512_unpacklo_ps(a, b) ::kvhive::emulated_vectors::unpacked<float, false>(a, b)
#define _mm512_unpackhi_ps(a, b) ::kvhive::emulated_vectors::unpacked<float, true>(a, b)
#define _mm512_unpacklo_epi8(a, b) ::kvhive::emulated_vectors::unpacked<std::uint8_t, false>(a, b)
#define _mm512_unpackhi_epi8(a, b) ::kvhive::emulated_vectors::unpacked<std::uint8_t, true>(a, b)
#define _mm512_unpacklo_epi32(a, b) ::kvhive::emulated_vectors::unpacked<std::uint32_t, false>(a, b)
#define _mm512_unpackhi_epi32(a, b) ::kvhive::emulated_vectors::unpacked<std::uint32_t, true>(a, b)
#define _mm512_unpacklo_epi64(a, b) ::kvhive::emulated_vectors::unpacked<std::uint64_t, false>(a, b)
#define _mm512_unpackhi_epi64(a, b) ::kvhive::emulated_vectors::unpacked<std::uint64_t, true>(a, b)
#define _mm512_permutex2var_epi8(a, i, b) \
  ::kvhive::emulated_vectors::looked_up<::kvhive::emulated_vectors::Bytes>(a, i, b)
#define _mm512_permutex2var_epi16(a, i, b) \
  ::kvhive::emulated_vectors::looked_up<::kvhive::emulated_vectors::Shorts>(a, i, b)
#define _mm512_maskz_permutex2var_epi8(m, a, i, b) \
  ::kvhive::emulated_vectors::keep_bytes(          \
      m, ::kvhive::emulated_vectors::looked_up<::kvhive::emulated_vectors::Bytes>(a, i, b))
#define _mm512_maskz_mov_epi16(m, x) ::kvhive::emulated_vectors::keep_shorts(m, x)
#define _mm512_test_epi8_mask(a, b) ::kvhive::emulated_vectors::common_bits(a, b)
#define _mm512_abs_epi8(x) ::kvhive::emulated_vectors::magnitudes(x)
#define _mm512_ternarylogic_epi64(a, b, c, t) ::kvhive::emulated_vectors::by_table(a, b, c, t)
#define _mm512_and_si512(a, b) ((a) & (b))
#define _mm512_cmpeq_epi16_mask(a, b) ::kvhive::emulated_vectors::equal_shorts(a, b)
#define _mm512_add_epi16(a, b) ::kvhive::emulated_vectors::add_shorts(a, b)
#define _mm512_shuffle_i32x4(a, b, c) ::kvhive::emulated_vectors::quarters(a, b, c)
#define _mm512_zextsi128_si512(x) ::kvhive::emulated_vectors::first_quarter(x)
#define _mm512_mask_broadcast_i32x4(o, m, x) ::kvhive::emulated_vectors::with_quarters(o, m, x)
#define _mm512_castps512_ps256(x) ::kvhive::emulated_vectors::half(x, 0)
#define _mm512_extractf32x8_ps(x, i) ::kvhive::emulated_vectors::half(x, i)
#define _mm512_castps_si512(x) ::kvhive::emulated_vectors::as<__m512i>(x)
#define _mm512_castsi512_ps(x) ::kvhive::emulated_vectors::as<__m512>(x)
#define _mm512_add_epi32(a, b) ::kvhive::emulated_vectors::add_ints(a, b)
#define _mm512_srli_epi32(x, n) ::kvhive::emulated_vectors::shifted_down(x, n)
#define _mm512_mask_or_epi32(o, m, a, b) ::kvhive::emulated_vectors::some_either(o, m, a, b)
#define _mm512_mask_blend_epi16(m, a, b) ::kvhive::emulated_vectors::blended(m, a, b)
#define _mm512_packus_epi32(a, b) ::kvhive::emulated_vectors::packed_to_shorts(a, b)
#define _mm512_shuffle_ps(a, b, c) ::kvhive::emulated_vectors::shuffled(a, b, c)
