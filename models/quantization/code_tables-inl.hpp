// Tables of sixteen values, byte by byte, to be looked up by codes as bytes: those that codes of
// four bits stand for, and those from which the values of e4m3 are made. Included once per
// instruction set.

#if defined(KVHIVE_CODE_TABLES_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef KVHIVE_CODE_TABLES_INL
#undef KVHIVE_CODE_TABLES_INL
#else
#define KVHIVE_CODE_TABLES_INL
#endif

#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace kvhive {
namespace HWY_NAMESPACE {
namespace {
namespace hn = hwy::HWY_NAMESPACE;

#if HWY_TARGET != HWY_SCALAR

/// Rounds to bf16: the upper halves of what this returns are, the lower ones are not 0. A NaN whose
/// lower half is 0 stays one.
template <class D>
HWY_INLINE hn::Vec<hn::RebindToUnsigned<D>> nearest_bf16(D, hn::Vec<D> value) {
  const hn::RebindToUnsigned<D> d32;
  const auto bits = hn::BitCast(d32, value);
  const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(d32, 1));
  return hn::Add(bits, hn::Add(odd, hn::Set(d32, 0x7fff)));
}

/// The first sixteen bytes of a vector of as many or of twice as many.
template <class V>
HWY_INLINE auto first_block(V bytes) {
  if constexpr (sizeof(V) == 16)
    return bytes;
  else
    return hn::LowerHalf(hn::FixedTag<std::uint8_t, 16>(), bytes);
}

/// What codes of four bits count.
alignas(32) inline constexpr float kFourBits[16] = {0, 1, 2,  3,  4,  5,  6,  7,
                                                    8, 9, 10, 11, 12, 13, 14, 15};
/// Of e4m3, what the last three bits count with the exponent 1, less one step of the exponent, and
/// with the exponent 0.
alignas(32) inline constexpr float kE4m3[16] = {
    0x8p-10f, 0x9p-10f, 0xap-10f, 0xbp-10f, 0xcp-10f, 0xdp-10f, 0xep-10f, 0xfp-10f,
    0x0p-9f,  0x1p-9f,  0x2p-9f,  0x3p-9f,  0x4p-9f,  0x5p-9f,  0x6p-9f,  0x7p-9f};

/// D has four or eight lanes.
template <class D>
struct CodeTables {
  using Bytes = hn::Repartition<std::uint8_t, D>;

  hn::Vec<Bytes> part[4];  ///< the values' bytes from the lowest on, the same sixteen in each block

  /// \tparam kIsBf16  values are rounded, and only the upper two tables mean something
  template <bool kIsBf16>
  static HWY_INLINE CodeTables of(const float (&numbers)[16], float zero, float scale) {
    const D d;
    const Bytes d8;
    const hn::RebindToUnsigned<D> d32;
    // Of four values, their lowest bytes, then the next.
    alignas(32) static constexpr std::uint8_t kBytes[32] = {0,  4,  8, 12, 1,  5,  9, 13, 2,  6, 10,
                                                            14, 3,  7, 11, 15, 0,  4, 8,  12, 1, 5,
                                                            9,  13, 2, 6,  10, 14, 3, 7,  11, 15};
    constexpr int kVectors = 16 / hn::MaxLanes(d);
    hn::Vec<decltype(d32)> v[kVectors];
#pragma GCC unroll 4
    for (int i = 0; i < kVectors; ++i) {
      const auto number = hn::Load(d, numbers + i * hn::MaxLanes(d));
      const auto value = hn::Mul(hn::Sub(number, hn::Set(d, zero)), hn::Set(d, scale));
      const auto bits = kIsBf16 ? nearest_bf16(d, value) : hn::BitCast(d32, value);
      v[i] = hn::BitCast(d32, hn::TableLookupBytes(hn::BitCast(d8, bits), hn::Load(d8, kBytes)));
    }
    CodeTables made;
    const auto low = hn::InterleaveLower(d32, v[0], v[1]);
    const auto high = hn::InterleaveUpper(d32, v[0], v[1]);
    if constexpr (kVectors == 2) {
      alignas(32) static constexpr std::int32_t kEven[8] = {0, 4, 1, 5, 0, 4, 1, 5};
      alignas(32) static constexpr std::int32_t kOdd[8] = {2, 6, 3, 7, 2, 6, 3, 7};
      const auto even = hn::SetTableIndices(d32, kEven), odd = hn::SetTableIndices(d32, kOdd);
      made.part[0] = hn::BitCast(d8, hn::TableLookupLanes(low, even));
      made.part[1] = hn::BitCast(d8, hn::TableLookupLanes(low, odd));
      made.part[2] = hn::BitCast(d8, hn::TableLookupLanes(high, even));
      made.part[3] = hn::BitCast(d8, hn::TableLookupLanes(high, odd));
    } else {
      const hn::Repartition<std::uint64_t, D> d64;
      const auto of = [&](auto pair) HWY_ATTR { return hn::BitCast(d64, pair); };
      const auto lower = of(low), upper = of(high);
      const auto next_lower = of(hn::InterleaveLower(d32, v[2], v[3]));
      const auto next_upper = of(hn::InterleaveUpper(d32, v[2], v[3]));
      made.part[0] = hn::BitCast(d8, hn::InterleaveLower(d64, lower, next_lower));
      made.part[1] = hn::BitCast(d8, hn::InterleaveUpper(d64, lower, next_lower));
      made.part[2] = hn::BitCast(d8, hn::InterleaveLower(d64, upper, next_upper));
      made.part[3] = hn::BitCast(d8, hn::InterleaveUpper(d64, upper, next_upper));
    }
    return made;
  }
};

/// Values of bf16 from a vector of e4m3's codes. The codes of a block's first half become `lower`.
///
/// A step of the exponent is a step of bf16's; the sign is where bf16's is. No value may be a
/// denormal of bf16 or more than it has.
template <class D8, class V>
HWY_INLINE void bf16_of_e4m3(D8 d8, hn::Vec<D8> code, V low_table, V high_table,
                             hn::Vec<hn::Repartition<std::uint16_t, D8>>& lower,
                             hn::Vec<hn::Repartition<std::uint16_t, D8>>& upper) {
  const hn::Repartition<std::uint16_t, D8> d16;
  const auto exponent = hn::And(code, hn::Set(d8, 0x78));
  const auto is_nan =
      hn::VecFromMask(d8, hn::Eq(hn::And(code, hn::Set(d8, 0x7f)), hn::Set(d8, 0x7f)));
  const auto has_none = hn::VecFromMask(d8, hn::Eq(exponent, hn::Zero(d8)));
  const auto place = hn::Or(hn::And(code, hn::Set(d8, 0x07)), hn::And(has_none, hn::Set(d8, 0x08)));
  const auto low = hn::Or(hn::TableLookupBytes(low_table, place), is_nan);
  const auto sign = hn::And(code, hn::Set(d8, 0x80));
  const auto high = hn::Or(hn::Or(hn::TableLookupBytes(high_table, place), is_nan), sign);
  const auto steps = hn::AndNot(is_nan, exponent);  // else a NaN's would carry
  const auto sum = [&](auto bits, auto count) HWY_ATTR {
    return hn::Add(hn::BitCast(d16, bits), hn::ShiftLeft<4>(hn::BitCast(d16, count)));
  };
  const auto zero = hn::Zero(d8);
  lower = sum(hn::InterleaveLower(d8, low, high), hn::InterleaveLower(d8, steps, zero));
  upper = sum(hn::InterleaveUpper(d8, low, high), hn::InterleaveUpper(d8, steps, zero));
}

#endif  // HWY_TARGET != HWY_SCALAR

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace kvhive
HWY_AFTER_NAMESPACE();

#endif  // KVHIVE_CODE_TABLES_INL
