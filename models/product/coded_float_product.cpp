// Some columns at a time, so that the additions of one wait for each other while those of others go
// on. Of a code of four bits and a scale there are sixteen values: they are looked up, where
// vectors have sixteen lanes as floats, else byte by byte. Values of eight bits are computed.

#include "models/product/coded_float_product.hpp"

#include <algorithm>

#include "base/check.hpp"
#include "kernels/cpu/instructions/denormals.hpp"

// What is older than AVX2 is not worth its compile time: there values are written down first. Nor
// is what AVX3_DL has beyond AVX3.
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4 | HWY_AVX3_DL)
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "models/product/coded_float_product.cpp"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/cpu/instructions/element-inl.hpp"
#include "models/product/float_sums-inl.hpp"
#include "models/quantization/code_tables-inl.hpp"

#ifndef KVHIVE_CODED_FLOAT_PRODUCT_ONCE
#define KVHIVE_CODED_FLOAT_PRODUCT_ONCE
namespace kvhive {
namespace coded_float_product_types {

/// A column of a product: a row of codes.
struct Column {
  const std::byte* codes = nullptr;
  const float* scales = nullptr;
  const std::uint8_t* zeros = nullptr;  ///< null: `zero` for all
  std::uint8_t zero = 0;

  float zero_of(std::int32_t group) const { return zeros == nullptr ? zero : zeros[group]; }
};

/// Columns that are multiplied at once.
constexpr std::int32_t kAtOnce = 4;

struct CodedArgs {
  CodeKind kind = CodeKind::uint4;
  std::int32_t run = 0;  ///< columns that share a scale
  bool is_bf16 = false;
  std::int32_t apart = 0;  ///< columns that are multiplied at once are so far from each other
  const ProductArgs* task = nullptr;
};

}  // namespace coded_float_product_types
}  // namespace kvhive
#endif

HWY_BEFORE_NAMESPACE();
namespace kvhive {
namespace HWY_NAMESPACE {
namespace {
using namespace coded_float_product_types;

constexpr std::int32_t kFewRows = HWY_TARGET <= HWY_AVX3 ? 4 : 3;

#if HWY_TARGET != HWY_SCALAR
using Numbers = hn::RebindToUnsigned<Floats>;
using Bits = hn::Vec<Numbers>;

/// kStep weights.
struct Pair {
  Sum first, second;
};

/// bf16 values as floats.
HWY_INLINE Sum rounded(Sum value) {
  return hn::BitCast(Floats(),
                     hn::And(nearest_bf16(Floats(), value), hn::Set(Numbers(), 0xffff0000u)));
}

template <bool kIsBf16>
HWY_INLINE Sum value_of(Sum number, Sum zero, Sum scale) {
  const Sum value = hn::Mul(hn::Sub(number, zero), scale);
  if constexpr (kIsBf16)
    return rounded(value);
  else
    return value;
}

HWY_INLINE Sum float_of(Bits number) {
  return hn::ConvertTo(Floats(), hn::BitCast(hn::RebindToSigned<Floats>(), number));
}

/// So many bytes as there are lanes.
HWY_INLINE Bits load_bytes(const std::byte* from) {
  const hn::Rebind<std::uint8_t, Floats> d8;
  return hn::PromoteTo(Numbers(), hn::LoadU(d8, reinterpret_cast<const std::uint8_t*>(from)));
}
HWY_INLINE Bits load_pairs(const std::byte* from) {
  const hn::Rebind<std::uint16_t, Floats> d16;
  return hn::PromoteTo(Numbers(), hn::LoadU(d16, reinterpret_cast<const std::uint16_t*>(from)));
}

// A form of codes has a Scale for a run of columns, which is computed beforehand and kept() in a
// line of memory, and load(), which makes kUnit values, a pair of vectors for each kStep: for bf16
// (kIsBf16) those at odd places first, as the rows of x are packed.

/// What is kept for a column's run.
struct alignas(64) Kept {
  float floats[16];
};

#if HWY_TARGET <= HWY_AVX3
template <bool kIsBf16, std::int32_t kRun>
struct OfFourBits {
  static constexpr std::int32_t kUnit = kStep;
  using Scale = Sum;  ///< the values of all codes
  static HWY_INLINE void keep(const Column& column, std::int32_t group, Kept& kept) {
    const Floats d;
    hn::Store(value_of<kIsBf16>(hn::Iota(d, 0.0f), hn::Set(d, column.zero_of(group)),
                                hn::Set(d, column.scales[group])),
              d, kept.floats);
  }
  static HWY_INLINE Scale kept(const Kept& kept) { return hn::Load(Floats(), kept.floats); }
  static HWY_INLINE void load(const std::byte* codes, std::int32_t k, Scale values,
                              Pair (&pairs)[1]) {
    if constexpr (kIsBf16) {
      const Bits both = load_bytes(codes + k / 2);
      pairs[0] = {at(values, hn::ShiftRight<4>(both)), at(values, both)};
    } else {
      pairs[0] = {at(values, in_order(codes + k / 2)),
                  at(values, in_order(codes + (k + kLanes) / 2))};
    }
  }

 private:
  /// \param code  in the lowest four bits; the others may be anything
  static HWY_INLINE Sum at(Sum values, Bits code) {
    return Sum{_mm512_permutexvar_ps(code.raw, values.raw)};
  }
  static HWY_INLINE Bits in_order(const std::byte* from) {
    const Numbers d32;
    const hn::Half<Numbers> half;
    std::uint32_t words[2];
    __builtin_memcpy(words, from, sizeof words);
    alignas(64) static constexpr std::uint32_t kPlaces[16] = {0, 4, 8, 12, 16, 20, 24, 28,
                                                              0, 4, 8, 12, 16, 20, 24, 28};
    return hn::Combine(d32, hn::Set(half, words[1]), hn::Set(half, words[0])) >>
           hn::Load(d32, kPlaces);
  }
};
#else
using Bytes = hn::Repartition<std::uint8_t, Floats>;
using ByteVector = hn::Vec<Bytes>;

/// \tparam kRun  64, or 32 where runs are no multiples of it; with 32, half of a vector of 64 codes
///               is not used
template <bool kIsBf16, std::int32_t kRun>
struct OfFourBits {
  static constexpr bool kIsHalf = kRun == 32;
  static constexpr std::int32_t kUnit = kIsHalf ? 32 : 8 * kLanes;
  static constexpr std::int32_t kPairs = kUnit / kStep;

  using Scale = CodeTables<Floats>;
  static HWY_INLINE void keep(const Column& column, std::int32_t group, Kept& kept) {
    const hn::FixedTag<std::uint8_t, 16> block;
    const auto tables = Scale::of<kIsBf16>(kFourBits, column.zero_of(group), column.scales[group]);
#pragma GCC unroll 4
    for (std::size_t part = kIsBf16 ? 2 : 0; part < 4; ++part)
      hn::Store(first_block(tables.part[part]), block,
                reinterpret_cast<std::uint8_t*>(kept.floats) + 16 * part);
  }
  static HWY_INLINE Scale kept(const Kept& kept) {
    Scale scale;
#pragma GCC unroll 4
    for (std::size_t part = kIsBf16 ? 2 : 0; part < 4; ++part)
      scale.part[part] =
          hn::LoadDup128(Bytes(), reinterpret_cast<const std::uint8_t*>(kept.floats) + 16 * part);
    return scale;
  }

  static HWY_INLINE void load(const std::byte* codes, std::int32_t k, const Scale& scale,
                              Pair (&pairs)[kPairs]) {
    const Bytes d8;
    const hn::Repartition<std::uint16_t, Bytes> d16;
    const ByteVector both = turned(codes + k / 2), mask = hn::Set(d8, 0x0f);
    const ByteVector even = hn::And(both, mask);
    const ByteVector odd =
        hn::And(hn::BitCast(d8, hn::ShiftRight<4>(hn::BitCast(d16, both))), mask);
    if constexpr (kIsBf16) {
      Sum firsts[4], seconds[4];
      look_up(scale, odd, firsts);
      look_up(scale, even, seconds);
#pragma GCC unroll 4
      for (int i = 0; i < kPairs; ++i) pairs[i] = {firsts[i], seconds[i]};
    } else {
      Sum values[4];
      look_up(scale, hn::InterleaveLower(d8, even, odd), values);
      pairs[0] = {values[0], values[1]};
      pairs[1] = {values[2], values[3]};
      if constexpr (!kIsHalf) {
        look_up(scale, hn::InterleaveUpper(d8, even, odd), values);
        pairs[2] = {values[0], values[1]};
        pairs[3] = {values[2], values[3]};
      }
    }
  }

 private:
  /// Codes so that each interleaving of a block's bytes below gives what belongs side by side.
  static HWY_INLINE ByteVector turned(const std::byte* from) {
    const Bytes d8;
    const hn::Repartition<std::uint32_t, Bytes> d32;
    const hn::Repartition<std::uint64_t, Bytes> d64;
    // Of 16 bytes, both blocks get all, and take what they need to their front.
    const ByteVector both = kIsHalf
                                ? hn::LoadDup128(d8, reinterpret_cast<const std::uint8_t*>(from))
                                : hn::LoadU(d8, reinterpret_cast<const std::uint8_t*>(from));
    if constexpr (kIsBf16) {
      // Fours of bytes by turns: 0 2 4 6 | 1 3 5 7.
      alignas(32) static constexpr std::int32_t kWhole[8] = {0, 2, 4, 6, 1, 3, 5, 7};
      alignas(32) static constexpr std::int32_t kHalf[8] = {0, 2, 0, 2, 1, 3, 1, 3};
      return hn::BitCast(d8,
                         hn::TableLookupLanes(hn::BitCast(d32, both),
                                              hn::SetTableIndices(d32, kIsHalf ? kHalf : kWhole)));
    } else {
      // Twos of bytes by turns.
      alignas(32) static constexpr std::uint8_t kTwos[32] = {
          0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15,
          0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15};
      const auto split = hn::BitCast(d64, hn::TableLookupBytes(both, hn::Load(d8, kTwos)));
      alignas(32) static constexpr std::int64_t kWhole[4] = {0, 2, 1, 3}, kHalf[4] = {0, 0, 1, 1};
      return hn::BitCast(
          d8, hn::TableLookupLanes(split, hn::SetTableIndices(d64, kIsHalf ? kHalf : kWhole)));
    }
  }

  /// The values of as many codes as four vectors hold; of half of them, if half is used.
  static HWY_INLINE void look_up(const Scale& scale, ByteVector code, Sum (&values)[4]) {
    const Bytes d8;
    const hn::Repartition<std::uint16_t, Bytes> d16;
    const auto found = [&](int part)
                           HWY_ATTR { return hn::TableLookupBytes(scale.part[part], code); };
    const auto lower = [&](auto a, auto b)
                           HWY_ATTR { return hn::BitCast(d16, hn::InterleaveLower(d8, a, b)); };
    const auto upper = [&](auto a, auto b)
                           HWY_ATTR { return hn::BitCast(d16, hn::InterleaveUpper(d8, a, b)); };
    const auto put = [&](auto lows, auto highs, Sum& first, Sum& second) HWY_ATTR {
      first = hn::BitCast(Floats(), hn::InterleaveLower(d16, lows, highs));
      second = hn::BitCast(Floats(), hn::InterleaveUpper(d16, lows, highs));
    };
    const ByteVector third = found(2), fourth = found(3);
    if constexpr (kIsBf16) {
      const auto zero = hn::Zero(d16);
      put(zero, lower(third, fourth), values[0], values[1]);
      if constexpr (!kIsHalf) put(zero, upper(third, fourth), values[2], values[3]);
    } else {
      const ByteVector first = found(0), second = found(1);
      put(lower(first, second), lower(third, fourth), values[0], values[1]);
      put(upper(first, second), upper(third, fourth), values[2], values[3]);
    }
  }
};
#endif

struct ZeroAndScale {
  Sum zero, scale;

  static HWY_INLINE void keep(float zero, float scale, Kept& kept) {
    kept.floats[0] = zero;
    kept.floats[1] = scale;
  }
  static HWY_INLINE ZeroAndScale kept(const Kept& kept) {
    return {hn::Set(Floats(), kept.floats[0]), hn::Set(Floats(), kept.floats[1])};
  }
};

/// kFlipped turns the codes of int8 into those of uint8.
template <bool kIsBf16, std::uint32_t kFlipped>
struct OfEightBits {
  static constexpr std::int32_t kUnit = kStep;
  using Scale = ZeroAndScale;
  static HWY_INLINE void keep(const Column& column, std::int32_t group, Kept& kept) {
    Scale::keep(column.zero_of(group), column.scales[group], kept);
  }
  static HWY_INLINE Scale kept(const Kept& kept) { return Scale::kept(kept); }
  static HWY_INLINE void load(const std::byte* codes, std::int32_t k, const Scale& scale,
                              Pair (&pairs)[1]) {
    const Numbers d32;
    const auto value = [&](Bits number) HWY_ATTR {
      return value_of<kIsBf16>(float_of(number), scale.zero, scale.scale);
    };
    if constexpr (kIsBf16) {
      const Bits both = hn::Xor(load_pairs(codes + k), hn::Set(d32, kFlipped * 0x101));
      pairs[0] = {value(hn::ShiftRight<8>(both)), value(hn::And(both, hn::Set(d32, 0xff)))};
    } else {
      const Bits flipped = hn::Set(d32, kFlipped);
      pairs[0] = {value(hn::Xor(load_bytes(codes + k), flipped)),
                  value(hn::Xor(load_bytes(codes + k + kLanes), flipped))};
    }
  }
};

template <bool kIsBf16>
struct OfE4m3 {
  static constexpr std::int32_t kUnit = kStep;
  using Scale = ZeroAndScale;
  static HWY_INLINE void keep(const Column& column, std::int32_t group, Kept& kept) {
    Scale::keep(0, column.scales[group] * E4m3Element::kUnit, kept);
  }
  static HWY_INLINE Scale kept(const Kept& kept) { return Scale::kept(kept); }
  static HWY_INLINE void load(const std::byte* codes, std::int32_t k, const Scale& scale,
                              Pair (&pairs)[1]) {
    const Floats d;
    if constexpr (kIsBf16) {
      const hn::Rebind<std::uint16_t, Floats> d16;
      const auto both = hn::LoadU(d16, reinterpret_cast<const std::uint16_t*>(codes + k));
      pairs[0] = {rounded(hn::Mul(of_upper(both), scale.scale)),
                  rounded(hn::Mul(of_upper(hn::ShiftLeft<8>(both)), scale.scale))};
    } else {
      pairs[0] = {hn::Mul(E4m3Element::load(d, codes + k), scale.scale),
                  hn::Mul(E4m3Element::load(d, codes + k + kLanes), scale.scale)};
    }
  }

 private:
  /// Of codes in the upper bytes, as E4m3Element makes them of codes alone.
  template <class V>
  static HWY_INLINE Sum of_upper(V code) {
    const hn::Rebind<std::int16_t, Floats> d16;
    const hn::Rebind<hwy::float16_t, Floats> df16;
    const auto moved = hn::And(hn::ShiftRight<1>(hn::BitCast(d16, code)),
                               hn::Set(d16, static_cast<std::int16_t>(0xbf80)));
    const auto nan = hn::And(hn::Add(moved, hn::Set(d16, 0x80)), hn::Set(d16, 0x4000));
    return hn::PromoteTo(Floats(), hn::BitCast(df16, hn::Or(moved, nan)));
  }
};

#if HWY_TARGET > HWY_AVX3
/// The same by tables, to bf16, where vectors are narrower.
struct OfE4m3ByTables {
  static constexpr std::int32_t kUnit = 4 * kLanes;
  struct Scale {
    ByteVector low, high;
  };
  static HWY_INLINE void keep(const Column& column, std::int32_t group, Kept& kept) {
    const hn::FixedTag<std::uint8_t, 16> block;
    const auto tables = CodeTables<Floats>::of<true>(kE4m3, 0, column.scales[group]);
    auto* const bytes = reinterpret_cast<std::uint8_t*>(kept.floats);
    hn::Store(first_block(tables.part[2]), block, bytes);
    hn::Store(first_block(tables.part[3]), block, bytes + 16);
  }
  static HWY_INLINE Scale kept(const Kept& kept) {
    const auto* const bytes = reinterpret_cast<const std::uint8_t*>(kept.floats);
    return {hn::LoadDup128(Bytes(), bytes), hn::LoadDup128(Bytes(), bytes + 16)};
  }
  static HWY_INLINE void load(const std::byte* codes, std::int32_t k, const Scale& scale,
                              Pair (&pairs)[2]) {
    const Bytes d8;
    const hn::Repartition<std::uint16_t, Bytes> d16;
    auto code = hn::LoadU(d8, reinterpret_cast<const std::uint8_t*>(codes + k));
    const hn::Repartition<std::uint64_t, Bytes> d64;
    alignas(32) static constexpr std::int64_t kTurns[4] = {0, 2, 1, 3};
    code = hn::BitCast(
        d8, hn::TableLookupLanes(hn::BitCast(d64, code), hn::SetTableIndices(d64, kTurns)));
    hn::Vec<decltype(d16)> lower, upper;
    bf16_of_e4m3(d8, code, scale.low, scale.high, lower, upper);
    pairs[0] = turns(lower);
    pairs[1] = turns(upper);
  }

 private:
  /// As the weights of bf16 are loaded.
  template <class V>
  static HWY_INLINE Pair turns(V values) {
    const Bits both = hn::BitCast(Numbers(), values);
    return {hn::BitCast(Floats(), hn::And(both, hn::Set(Numbers(), 0xffff0000u))),
            hn::BitCast(Floats(), hn::ShiftLeft<16>(both))};
  }
};
#endif

/// Multiplies a row of x with a column.
template <int kPairs>
HWY_INLINE void add(const Pair (&values)[kPairs], const float* x, Sum& sum) {
  const Floats d;
#pragma GCC unroll 4
  for (std::ptrdiff_t i = 0; i < kPairs; ++i) {
    sum = hn::MulAdd(values[i].first, hn::LoadU(d, x + i * kStep), sum);
    sum = hn::MulAdd(values[i].second, hn::LoadU(d, x + i * kStep + kLanes), sum);
  }
}

/// Not inlined: with it, GCC 12 takes minutes for multiply_tile().
template <int kColumns, class Codes>
HWY_NOINLINE void keep_all(const Column* columns, std::int32_t first, std::int32_t groups,
                           Kept (*kept)[kColumns]) {
  for (std::int32_t g = 0; g < groups; ++g)
    for (int j = 0; j < kColumns; ++j) Codes::keep(columns[j], first + g, kept[g][j]);
}

/// Some columns over all of K.
template <int kRows, int kColumns, class Codes>
void multiply_tile(const CodedArgs& args, std::int32_t n, const Column* columns) {
  using namespace float_product_sizes;
  const ProductArgs& task = *args.task;
  const float* x[kRows];
  for (int r = 0; r < kRows; ++r) x[r] = packed_x(task, r);
  Kept kept[kBlockDepth / kPadding + 1][kColumns];
  for (std::int32_t block = 0; block < task.shape.K; block += kBlockDepth) {
    const std::int32_t rest = task.shape.K - block;
    const std::int32_t end = block + (rest < kBlockDepth ? rest : kBlockDepth);
    Sum sums[kColumns][kRows];
    for (auto& column : sums)
      for (Sum& sum : column) sum = hn::Zero(Floats());
    const std::int32_t first = block / args.run, groups = (end - 1) / args.run - first + 1;
    keep_all<kColumns, Codes>(columns, first, groups, kept);
    for (std::int32_t g = 0, k = block; k < end; ++g) {
      const std::int32_t left = (first + g + 1) * args.run - k;
      const std::int32_t stop = left < end - k ? k + left : end;
      for (; k < stop; k += Codes::kUnit) {
        // Scales are loaded where they are used: the registers are for the sums, whose additions
        // wait for each other.
        asm volatile("" ::: "memory");
#pragma GCC unroll 4
        for (int j = 0; j < kColumns; ++j) {
          Pair values[Codes::kUnit / kStep];
          Codes::load(columns[j].codes, k, Codes::kept(kept[g][j]), values);
#pragma GCC unroll 4
          for (int r = 0; r < kRows; ++r) add(values, x[r] + k, sums[j][r]);
        }
      }
    }
    for (int r = 0; r < kRows; ++r)
      for (int j = 0; j < kColumns; ++j)
        if (const float sum = folded(sums[j][r]); n + j * args.apart < task.columns)
          finish_sum(task, r, n + j * args.apart, end, sum);
  }
}

/// kAtOnce columns.
template <class Codes>
void multiply_rows(const CodedArgs& args, std::int32_t n, const Column* columns) {
  if (args.task->rows == 1) return multiply_tile<1, kAtOnce, Codes>(args, n, columns);
  for (std::int32_t j = 0; j < kAtOnce; j += 2) {
    const std::int32_t first = n + j * args.apart;
    if (args.task->rows == 2)
      multiply_tile<2, 2, Codes>(args, first, columns + j);
    else if (args.task->rows == 3)
      multiply_tile<3, 2, Codes>(args, first, columns + j);
    else
      multiply_tile<kFewRows, 2, Codes>(args, first, columns + j);
  }
}

template <bool kIsBf16>
void multiply_to(const CodedArgs& args, std::int32_t n, const Column* columns) {
  switch (args.kind) {
    case CodeKind::uint4:
      if (args.run % 64 == 0 && args.task->shape.K % 64 == 0)
        return multiply_rows<OfFourBits<kIsBf16, 64>>(args, n, columns);
      return multiply_rows<OfFourBits<kIsBf16, 32>>(args, n, columns);
    case CodeKind::uint8: return multiply_rows<OfEightBits<kIsBf16, 0>>(args, n, columns);
    case CodeKind::int8: return multiply_rows<OfEightBits<kIsBf16, 0x80>>(args, n, columns);
    case CodeKind::e4m3:
#if HWY_TARGET > HWY_AVX3
      if constexpr (kIsBf16) return multiply_rows<OfE4m3ByTables>(args, n, columns);
#endif
      return multiply_rows<OfE4m3<kIsBf16>>(args, n, columns);
  }
}

void multiply_columns(const CodedArgs& args, std::int32_t n, const Column* columns) {
  const WithoutDenormals none;
  if (args.is_bf16)
    multiply_to<true>(args, n, columns);
  else
    multiply_to<false>(args, n, columns);
}

std::int32_t most_rows() { return kFewRows; }
#else
void multiply_columns(const CodedArgs&, std::int32_t, const Column*) {}
std::int32_t most_rows() { return 0; }
#endif

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace kvhive
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvhive {
namespace {

using namespace coded_float_product_types;

HWY_EXPORT(multiply_columns);
HWY_EXPORT(most_rows);

}  // namespace

std::int32_t most_coded_float_rows() { return HWY_DYNAMIC_DISPATCH(most_rows)(); }

bool takes_coded_float_rows(const CodedMatrix& weights) {
  constexpr std::int32_t kWhole = float_product_sizes::kPadding;
  if (!weights.groups.empty() || weights.grid.block_columns % kWhole != 0 ||
      weights.K % kWhole != 0)
    return false;
  return std::ranges::all_of(weights.grid.scales,
                             [&](float scale) { return is_plain(weights.kind, scale); });
}

void multiply_coded_float_rows(const CodedMatrix& weights, Dtype values, OrderedCodes codes,
                               const ProductArgs& task, std::int32_t first_column) {
  KV_CHECK(task.rows <= most_coded_float_rows(), task.rows);
  const std::size_t across = weights.grid.across(weights.K);
  const auto column = [&](std::int32_t n) {
    const std::size_t group = (first_column + n) / weights.grid.block_rows * across;
    return Column{codes.first + n * codes.pitch, &weights.grid.scales[group],
                  weights.zeros.empty() ? nullptr : &weights.zeros[group], weights.zero};
  };
  // Four long runs of memory side by side.
  const std::int32_t apart = (task.columns + kAtOnce - 1) / kAtOnce;
  const CodedArgs args{weights.kind, weights.grid.block_columns, values == Dtype::bf16, apart,
                       &task};
  for (std::int32_t n = 0; n < apart; ++n) {
    // Columns behind the last are computed and forgotten.
    Column columns[kAtOnce];
    for (std::int32_t j = 0; j < kAtOnce; ++j)
      columns[j] = column(std::min(n + j * apart, task.columns - 1));
    HWY_DYNAMIC_DISPATCH(multiply_columns)(args, n, columns);
  }
}

}  // namespace kvhive
#endif
