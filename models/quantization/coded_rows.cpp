// Codes become values a run at a time: columns of a row that share a scale. Of a code of four bits
// and a scale there are only sixteen values of bf16; they are computed once for a run, and looked
// up by the bytes of which they consist.

#include "models/quantization/coded_rows.hpp"

#include <algorithm>
#include <cstring>

#include "base/check.hpp"
#include "base/memory/line_allocator.hpp"
#include "config/fp8.hpp"

// SSSE3 is too old to be worth its compile time.
#define HWY_DISABLED_TARGETS HWY_SSSE3
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "models/quantization/coded_rows.cpp"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/cpu/instructions/element-inl.hpp"
#include "models/quantization/code_tables-inl.hpp"

#ifndef KVHIVE_CODED_ROWS_ONCE
#define KVHIVE_CODED_ROWS_ONCE
namespace kvhive {
namespace coded_rows_types {

/// A row, its codes in order.
struct RowArgs {
  CodeKind kind = CodeKind::e4m3;
  const std::byte* codes = nullptr;
  std::int32_t K = 0;
  const float* scales = nullptr;        ///< of the row
  const std::uint8_t* zeros = nullptr;  ///< of the row; null: `zero`
  std::uint8_t zero = 0;
  std::int32_t run = 0;                  ///< columns that share a scale
  const std::int32_t* groups = nullptr;  ///< which scale each column has; null: that of its run
  const float* group_zeros = nullptr;    ///< with groups: what `zeros` says
  std::byte* unpacked = nullptr;         ///< K bytes
  bool is_bf16 = false;
  std::byte* values = nullptr;
};

/// Rows to be put in order.
struct WordArgs {
  const std::byte* words = nullptr;  ///< of the first row
  std::size_t pitch = 0;             ///< words from one line of the file to the next
  std::int32_t rows = 0;
  std::int32_t K = 0;          ///< with AWQ: lines of the file
  std::int32_t row_words = 0;  ///< of a row in order; with GPTQ: lines of the file
  std::byte* to = nullptr;
  std::size_t to_pitch = 0;  ///< bytes
};

/// Where columns have scales of their own, K is a multiple of this.
constexpr std::int32_t kGroupedColumns = 32;

}  // namespace coded_rows_types
}  // namespace kvhive
#endif

HWY_BEFORE_NAMESPACE();
namespace kvhive {
namespace HWY_NAMESPACE {
namespace {
namespace hn = hwy::HWY_NAMESPACE;
using namespace coded_rows_types;

#if HWY_TARGET == HWY_SCALAR
constexpr std::int32_t kTurned = 0;  ///< rows and columns that are put in order by vectors
void order_gptq_lines(const WordArgs&, std::int32_t, std::int32_t) {}
void order_awq_tiles(const WordArgs&, std::int32_t, std::int32_t) {}

float number_of(const RowArgs& row, std::int32_t k) {
  const auto code = std::to_integer<std::uint8_t>(row.codes[k]);
  switch (row.kind) {
    case CodeKind::e4m3: return float_of_e4m3(code);
    case CodeKind::int8: return code ^ 0x80;
    case CodeKind::uint8: return code;
    case CodeKind::uint4: break;
  }
  return std::to_integer<std::uint32_t>(row.codes[k / 2]) >> (k % 2 * 4) & 15;
}

void decode_row(const RowArgs& row) {
  for (std::int32_t k = 0; k < row.K; ++k) {
    const std::int32_t group = row.groups == nullptr ? k / row.run : row.groups[k];
    const float zero = row.zeros == nullptr ? row.zero : row.zeros[group];
    const float value = (number_of(row, k) - zero) * row.scales[group];
    const std::uint16_t narrow = bf16_of_float(value);
    if (row.is_bf16)
      __builtin_memcpy(row.values + std::int64_t{k} * 2, &narrow, sizeof narrow);
    else
      __builtin_memcpy(row.values + std::int64_t{k} * 4, &value, sizeof value);
  }
}
#else
constexpr std::int32_t kTurned = 1;
using Floats = hn::CappedTag<float, 8>;
constexpr std::int32_t kLanes = hn::MaxLanes(Floats());

/// bf16 values in the lower halves.
HWY_INLINE hn::Vec<hn::RebindToSigned<Floats> > narrow(hn::Vec<Floats> value) {
  return hn::BitCast(hn::RebindToSigned<Floats>(),
                     hn::ShiftRight<16>(nearest_bf16(Floats(), value)));
}

// load() returns a code's number times 1 / kUnit, less kOffset.
struct LoadE4m3 : E4m3Element {
  static constexpr float kOffset = 0;
};
struct LoadInt8 : Int8Element {
  static constexpr float kOffset = 128;
};
struct LoadUint8 {
  static constexpr float kUnit = 1;
  static constexpr float kOffset = 0;
  template <class D>
  static HWY_INLINE hn::Vec<D> load(D d, const std::byte* from) {
    const hn::Rebind<std::uint8_t, D> du8;
    const hn::Rebind<std::int32_t, D> di32;
    return hn::ConvertTo(
        d, hn::PromoteTo(di32, hn::LoadU(du8, reinterpret_cast<const std::uint8_t*>(from))));
  }
};

/// Two vectors of values from two of codes' numbers, of columns from k on.
template <class Load, bool kIsBf16, class Scaled>
HWY_INLINE void decode_step(const std::byte* codes, std::int32_t k, const Scaled& scaled,
                            std::byte* values) {
  const Floats d;
  const auto first = scaled(Load::load(d, codes), k);
  const auto second = scaled(Load::load(d, codes + kLanes), k + kLanes);
  if constexpr (kIsBf16) {
    const hn::Repartition<std::uint16_t, Floats> d16;
    const hn::Rebind<std::uint16_t, Floats> half;
    const auto low = hn::DemoteTo(half, narrow(first)), high = hn::DemoteTo(half, narrow(second));
    hn::StoreU(hn::Combine(d16, high, low), d16, reinterpret_cast<std::uint16_t*>(values));
  } else {
    hn::StoreU(first, d, reinterpret_cast<float*>(values));
    hn::StoreU(second, d, reinterpret_cast<float*>(values) + kLanes);
  }
}

/// Columns begin .. end - 1; the last ones by way of memory of their own.
template <class Load, bool kIsBf16, class Scaled>
HWY_INLINE void decode_columns(const RowArgs& row, std::int32_t begin, std::int32_t end,
                               const Scaled& scaled) {
  constexpr std::size_t kSize = kIsBf16 ? 2 : 4;
  std::int32_t k = begin;
  for (; k + 2 * kLanes <= end; k += 2 * kLanes)
    decode_step<Load, kIsBf16>(row.codes + k, k, scaled, row.values + k * kSize);
  if (k == end) return;
  std::byte codes[2 * kLanes] = {}, values[std::size_t{2} * kLanes * kSize];
  __builtin_memcpy(codes, row.codes + k, static_cast<std::size_t>(end - k));
  decode_step<Load, kIsBf16>(codes, k, scaled, values);
  __builtin_memcpy(row.values + k * kSize, values, static_cast<std::size_t>((end - k) * kSize));
}

/// A scale over columns begin .. end - 1.
template <class Load, bool kIsBf16>
void decode_run(const RowArgs& row, std::int32_t begin, std::int32_t end, std::int32_t group) {
  const Floats d;
  const float zero = row.zeros == nullptr ? row.zero : row.zeros[group];
  const auto less = hn::Set(d, zero - Load::kOffset);
  const auto scale = hn::Set(d, row.scales[group] * Load::kUnit);
  decode_columns<Load, kIsBf16>(row, begin, end, [&](auto number, std::int32_t) HWY_ATTR {
    return hn::Mul(hn::Sub(number, less), scale);
  });
}

template <class Load, bool kIsBf16>
void decode_bytes(const RowArgs& row) {
  std::int32_t group = 0;
  for (std::int32_t begin = 0; begin < row.K; begin += row.run, ++group)
    decode_run<Load, kIsBf16>(row, begin, row.K - begin < row.run ? row.K : begin + row.run, group);
}

/// Each column has a scale of its own. \pre K is a multiple of kGroupedColumns
template <bool kIsBf16>
void decode_grouped(const RowArgs& row) {
  static_assert(kGroupedColumns % (2 * kLanes) == 0);
  const Floats d;
  const hn::RebindToSigned<Floats> di32;
  decode_columns<LoadUint8, kIsBf16>(row, 0, row.K, [&](auto number, std::int32_t k) HWY_ATTR {
    const auto group = hn::LoadU(di32, row.groups + k);
    return hn::Mul(hn::Sub(number, hn::GatherIndex(d, row.group_zeros, group)),
                   hn::GatherIndex(d, row.scales, group));
  });
}

/// Four vectors of 16-bit values from one of codes.
template <class D8, class V>
HWY_INLINE void look_up(D8 d8, const std::byte* codes, V low, V high, std::uint16_t* values) {
  const hn::Repartition<std::uint32_t, D8> d32;
  const hn::Repartition<std::uint16_t, D8> d16;
  constexpr std::ptrdiff_t kValues = hn::MaxLanes(d16);
  auto both = hn::LoadU(d8, reinterpret_cast<const std::uint8_t*>(codes));
  if constexpr (hn::MaxLanes(d32) == 8) {
    // Each interleaving below takes from both halves of a vector what belongs side by side.
    alignas(32) static constexpr std::int32_t kTurns[8] = {0, 2, 4, 6, 1, 3, 5, 7};
    both = hn::BitCast(
        d8, hn::TableLookupLanes(hn::BitCast(d32, both), hn::SetTableIndices(d32, kTurns)));
  }
  const auto mask = hn::Set(d8, 0x0f);
  const auto even = hn::And(both, mask);
  const auto odd = hn::And(hn::BitCast(d8, hn::ShiftRight<4>(hn::BitCast(d16, both))), mask);
  const auto put = [&](auto index, std::uint16_t* to) HWY_ATTR {
    const auto l = hn::TableLookupBytes(low, index), h = hn::TableLookupBytes(high, index);
    hn::StoreU(hn::BitCast(d16, hn::InterleaveLower(d8, l, h)), d16, to);
    hn::StoreU(hn::BitCast(d16, hn::InterleaveUpper(d8, l, h)), d16, to + kValues);
  };
  put(hn::InterleaveLower(d8, even, odd), values);
  put(hn::InterleaveUpper(d8, even, odd), values + 2 * kValues);
}

/// Of four bits, to bf16. \pre runs begin at whole bytes
void look_up_row(const RowArgs& row) {
  const hn::Repartition<std::uint8_t, Floats> wide;
  const hn::FixedTag<std::uint8_t, 16> block;
  constexpr std::int32_t kWide = 2 * hn::MaxLanes(wide);
  auto* const values = reinterpret_cast<std::uint16_t*>(row.values);
  std::int32_t group = 0;
  for (std::int32_t begin = 0; begin < row.K; begin += row.run, ++group) {
    const std::int32_t end = row.K - begin < row.run ? row.K : begin + row.run;
    const float zero = row.zeros == nullptr ? row.zero : row.zeros[group];
    const auto tables = CodeTables<Floats>::of<true>(kFourBits, zero, row.scales[group]);
    const auto low = tables.part[2], high = tables.part[3];
    const auto low_block = first_block(low), high_block = first_block(high);
    std::int32_t k = begin;
    for (; k + kWide <= end; k += kWide) look_up(wide, row.codes + k / 2, low, high, values + k);
    for (; k + 32 <= end; k += 32)
      look_up(block, row.codes + k / 2, low_block, high_block, values + k);
    if (k == end) continue;
    alignas(16) std::uint8_t low_bytes[16], high_bytes[16];
    hn::Store(low_block, block, low_bytes);
    hn::Store(high_block, block, high_bytes);
    for (; k < end; ++k) {
      const auto code = std::to_integer<std::uint32_t>(row.codes[k / 2]) >> (k % 2 * 4) & 15;
      values[k] = static_cast<std::uint16_t>(low_bytes[code] | high_bytes[code] << 8);
    }
  }
}

/// Of e4m3, to bf16.
void look_up_e4m3_row(const RowArgs& row) {
  const hn::Repartition<std::uint8_t, Floats> d8;
  const hn::Repartition<std::uint16_t, Floats> d16;
  constexpr std::int32_t kCodes = hn::MaxLanes(d8), kValues = kCodes / 2;
  auto* const values = reinterpret_cast<std::uint16_t*>(row.values);
  std::int32_t group = 0;
  for (std::int32_t begin = 0; begin < row.K; begin += row.run, ++group) {
    const std::int32_t end = row.K - begin < row.run ? row.K : begin + row.run;
    if (!is_plain(CodeKind::e4m3, row.scales[group])) {
      decode_run<LoadE4m3, true>(row, begin, end, group);
      continue;
    }
    const auto tables = CodeTables<Floats>::of<true>(kE4m3, 0, row.scales[group]);
    const auto step = [&](const std::byte* codes, std::uint16_t* to) HWY_ATTR {
      auto code = hn::LoadU(d8, reinterpret_cast<const std::uint8_t*>(codes));
      if constexpr (kLanes == 8) {
        const hn::Repartition<std::uint64_t, Floats> d64;
        alignas(32) static constexpr std::int64_t kTurns[4] = {0, 2, 1, 3};
        code = hn::BitCast(
            d8, hn::TableLookupLanes(hn::BitCast(d64, code), hn::SetTableIndices(d64, kTurns)));
      }
      hn::Vec<decltype(d16)> lower, upper;
      bf16_of_e4m3(d8, code, tables.part[2], tables.part[3], lower, upper);
      hn::StoreU(lower, d16, to);
      hn::StoreU(upper, d16, to + kValues);
    };
    std::int32_t k = begin;
    for (; k + kCodes <= end; k += kCodes) step(row.codes + k, values + k);
    if (k == end) continue;
    std::byte codes[kCodes] = {};
    std::uint16_t rest[kCodes];
    __builtin_memcpy(codes, row.codes + k, static_cast<std::size_t>(end - k));
    step(codes, rest);
    __builtin_memcpy(values + k, rest, static_cast<std::size_t>(end - k) * sizeof rest[0]);
  }
}

/// Codes of four bits become bytes.
void unpack(const std::byte* from, std::int32_t K, std::byte* to) {
  const hn::FixedTag<std::uint8_t, 16> d8;
  const hn::FixedTag<std::uint16_t, 8> d16;
  std::int32_t k = 0;
  for (; k + 32 <= K; k += 32) {
    const auto both = hn::LoadU(d8, reinterpret_cast<const std::uint8_t*>(from + k / 2));
    const auto mask = hn::Set(d8, 0x0f);
    const auto even = hn::And(both, mask);
    const auto odd = hn::And(hn::BitCast(d8, hn::ShiftRight<4>(hn::BitCast(d16, both))), mask);
    hn::StoreU(hn::InterleaveLower(d8, even, odd), d8, reinterpret_cast<std::uint8_t*>(to + k));
    hn::StoreU(hn::InterleaveUpper(d8, even, odd), d8,
               reinterpret_cast<std::uint8_t*>(to + k + 16));
  }
  for (; k < K; ++k) to[k] = (from[k / 2] >> (k % 2 * 4)) & std::byte{15};
}

template <bool kIsBf16>
void decode_to(const RowArgs& row) {
  switch (row.kind) {
    case CodeKind::e4m3: return decode_bytes<LoadE4m3, kIsBf16>(row);
    case CodeKind::int8: return decode_bytes<LoadInt8, kIsBf16>(row);
    default: break;
  }
  RowArgs bytes = row;
  if (row.kind == CodeKind::uint4) {
    unpack(row.codes, row.K, row.unpacked);
    bytes.codes = row.unpacked;
  }
  if (row.groups != nullptr) return decode_grouped<kIsBf16>(bytes);
  decode_bytes<LoadUint8, kIsBf16>(bytes);
}

void decode_row(const RowArgs& row) {
  if (row.is_bf16 && row.groups == nullptr) {
    if (row.kind == CodeKind::uint4 && row.run % 2 == 0) return look_up_row(row);
    if (row.kind == CodeKind::e4m3) return look_up_e4m3_row(row);
  }
  if (row.is_bf16)
    decode_to<true>(row);
  else
    decode_to<false>(row);
}

using Words = hn::RebindToUnsigned<Floats>;
using WordVector = hn::Vec<Words>;
using Bytes = hn::Repartition<std::uint8_t, Floats>;
using ByteVector = hn::Vec<Bytes>;
constexpr std::int32_t kLineBytes = 64;

HWY_INLINE ByteVector load(const std::byte* from) {
  return hn::LoadU(Bytes(), reinterpret_cast<const std::uint8_t*>(from));
}

/// Stores a vector's blocks so many bytes from each other.
template <class V>
HWY_INLINE void store_blocks(V bytes, std::byte* to, std::size_t apart) {
  const hn::FixedTag<std::uint8_t, 16> block;
  hn::StoreU(first_block(bytes), block, reinterpret_cast<std::uint8_t*>(to));
  if constexpr (sizeof(V) == 32)
    hn::StoreU(hn::UpperHalf(block, bytes), block, reinterpret_cast<std::uint8_t*>(to + apart));
}

/// In each block, four vectors of four words: lines become columns.
HWY_INLINE void turn(WordVector (&v)[4]) {
  const Words d;
  const hn::Repartition<std::uint64_t, Words> d64;
  const auto of = [&](WordVector pair) HWY_ATTR { return hn::BitCast(d64, pair); };
  const auto a = of(hn::InterleaveLower(d, v[0], v[1])), b = of(hn::InterleaveLower(d, v[2], v[3]));
  const auto c = of(hn::InterleaveUpper(d, v[0], v[1])), e = of(hn::InterleaveUpper(d, v[2], v[3]));
  v[0] = hn::BitCast(d, hn::InterleaveLower(d64, a, b));
  v[1] = hn::BitCast(d, hn::InterleaveUpper(d64, a, b));
  v[2] = hn::BitCast(d, hn::InterleaveLower(d64, c, e));
  v[3] = hn::BitCast(d, hn::InterleaveUpper(d64, c, e));
}

/// A line's worth of words of 16 lines, 16 rows, becomes a line's worth of each row. The lines are
/// copied first: where they lie, most have the same place in L1.
void turn_gptq(const std::byte* from, std::size_t pitch, std::byte* to, std::size_t to_pitch) {
  alignas(64) std::byte lines[16][kLineBytes];
  for (std::size_t line = 0; line < 16; ++line) {
    __builtin_prefetch(from + (line + 16) * pitch);
    for (std::int32_t at = 0; at < kLineBytes; at += 4 * kLanes)
      hn::Store(load(from + line * pitch + at), Bytes(),
                reinterpret_cast<std::uint8_t*>(lines[line] + at));
  }
  for (std::size_t row = 0; row < 16; row += kLanes)
    for (std::size_t line = 0; line < 16; line += 4) {
      WordVector v[4];
      for (std::size_t i = 0; i < 4; ++i)
        v[i] = hn::BitCast(Words(), load(lines[line + i] + row * 4));
      turn(v);
      for (std::size_t i = 0; i < 4; ++i)
        store_blocks(hn::BitCast(Bytes(), v[i]), to + (row + i) * to_pitch + line * 4,
                     4 * to_pitch);
    }
}

void order_gptq_lines(const WordArgs& args, std::int32_t rows, std::int32_t lines) {
  for (std::int64_t line = 0; line < lines; line += 16)
    for (std::int64_t row = 0; row < rows; row += 16)
      turn_gptq(args.words + (line * args.pitch + row) * 4, args.pitch * 4,
                args.to + row * args.to_pitch + line * 4, args.to_pitch);
}

/// In each block, sixteen vectors of sixteen bytes: lines become columns.
HWY_INLINE void turn(ByteVector (&v)[16]) {
#pragma GCC unroll 4
  for (int round = 0; round < 4; ++round) {
    ByteVector next[16];
#pragma GCC unroll 8
    for (std::size_t i = 0; i < 8; ++i) {
      next[2 * i] = hn::InterleaveLower(Bytes(), v[i], v[i + 8]);
      next[2 * i + 1] = hn::InterleaveUpper(Bytes(), v[i], v[i + 8]);
    }
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i) v[i] = next[i];
  }
}

/// 32 columns of 128 rows, which have a cache line's worth of words in each line of the file. A
/// word's bytes have two rows each; of two lines, they become bytes of two columns of a row.
void turn_awq(const std::byte* from, std::size_t pitch, std::byte* to, std::size_t to_pitch) {
  const hn::Repartition<std::uint16_t, Bytes> d16;
  const auto lower = hn::Set(Bytes(), 0x0f), upper = hn::Set(Bytes(), 0xf0);
  constexpr std::size_t kVectors = kLineBytes / (4 * kLanes);
  ByteVector pairs[2][kVectors][16];  // [place in a byte][part of the line][two columns]
  for (std::size_t i = 0; i < 16; ++i) {
    __builtin_prefetch(from + (2 * i + 32) * pitch);
    __builtin_prefetch(from + (2 * i + 33) * pitch);
    for (std::size_t part = 0; part < kVectors; ++part) {
      const ByteVector a = load(from + 2 * i * pitch + part * 4 * kLanes);
      const ByteVector b = load(from + (2 * i + 1) * pitch + part * 4 * kLanes);
      const auto moved_a = hn::BitCast(Bytes(), hn::ShiftRight<4>(hn::BitCast(d16, a)));
      const auto moved_b = hn::BitCast(Bytes(), hn::ShiftLeft<4>(hn::BitCast(d16, b)));
      pairs[0][part][i] = hn::Or(hn::And(a, lower), hn::And(moved_b, upper));
      pairs[1][part][i] = hn::Or(hn::And(moved_a, lower), hn::And(b, upper));
    }
  }
  for (std::size_t odd = 0; odd < 2; ++odd)
    for (std::size_t part = 0; part < kVectors; ++part) {
      auto& v = pairs[odd][part];
      turn(v);
      for (std::size_t byte = 0; byte < 16; ++byte) {
        const std::size_t word = part * kLanes + byte / 4;
        store_blocks(v[byte],
                     to + (8 * word + std::size_t(kAwqRows[byte % 4 * 2 + odd])) * to_pitch,
                     32 * to_pitch);
      }
    }
}

void order_awq_tiles(const WordArgs& args, std::int32_t rows, std::int32_t columns) {
  for (std::int64_t k = 0; k < columns; k += 32)
    for (std::int64_t row = 0; row < rows; row += 128)
      turn_awq(args.words + (k * args.pitch + row / 8) * 4, args.pitch * 4,
               args.to + row * args.to_pitch + k / 2, args.to_pitch);
}
#endif

void order_gptq(const WordArgs& args) {
  const std::int32_t rows = kTurned * (args.rows / 16 * 16);
  const std::int32_t lines = kTurned * (args.row_words / 16 * 16);
  order_gptq_lines(args, rows, lines);
  for (std::int32_t row = 0; row < args.rows; ++row)
    for (std::int32_t w = row < rows ? lines : 0; w < args.row_words; ++w) {
      const std::uint32_t value = word_at(args.words, w * args.pitch + row);
      __builtin_memcpy(args.to + row * args.to_pitch + std::int64_t{w} * 4, &value, sizeof value);
    }
}

void order_awq(const WordArgs& args) {
  const std::int32_t rows = kTurned * (args.rows / 128 * 128);
  const std::int32_t columns = kTurned * (args.K / 32 * 32);
  order_awq_tiles(args, rows, columns);
  for (std::int32_t row = 0; row < args.rows; row += 8)
    for (std::int32_t k = row < rows ? columns : 0; k < args.K; ++k) {
      const std::uint32_t eight = word_at(args.words, k * args.pitch + row / 8);
      for (int place = 0; place < 8; ++place) {
        std::byte& pair = args.to[(row + kAwqRows[place]) * args.to_pitch + k / 2];
        const auto code = static_cast<std::byte>(eight >> (4 * place) & 15);
        pair = k % 2 == 0 ? code : pair | code << 4;
      }
    }
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace kvhive
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvhive {
namespace {

using namespace coded_rows_types;

HWY_EXPORT(decode_row);
HWY_EXPORT(order_gptq);
HWY_EXPORT(order_awq);

constexpr std::size_t kLine = 64;

std::size_t whole_lines(std::size_t bytes) { return (bytes + kLine - 1) / kLine * kLine; }

/// Bytes from row to row in order: rows do not begin at the same places of L1.
std::size_t ordered_pitch(const CodedMatrix& matrix) {
  return whole_lines(matrix.row_bytes()) + kLine;
}

/// What decode_row() needs beside a row.
struct RowRoom {
  LineVector<std::byte> unpacked;
  std::vector<float> zeros;
};

RowArgs args_of(const CodedMatrix& matrix, std::int32_t row, Dtype to, RowRoom& room) {
  const std::size_t across = matrix.grid.across(matrix.K);
  const std::size_t first = row / matrix.grid.block_rows * across;
  RowArgs args{.kind = matrix.kind,
               .K = matrix.K,
               .scales = &matrix.grid.scales[first],
               .zeros = matrix.zeros.empty() ? nullptr : &matrix.zeros[first],
               .zero = matrix.zero,
               .run = matrix.grid.block_columns,
               .is_bf16 = to == Dtype::bf16};
  if (matrix.kind == CodeKind::uint4) {
    room.unpacked.resize(std::max(room.unpacked.size(), std::size_t(matrix.K)));
    args.unpacked = room.unpacked.data();
  }
  if (!matrix.groups.empty()) {
    room.zeros.assign(across, matrix.zero);
    if (args.zeros != nullptr) std::copy_n(args.zeros, across, room.zeros.begin());
    args.groups = matrix.groups.data();
    args.group_zeros = room.zeros.data();
  }
  return args;
}

}  // namespace

std::int32_t rows_side_by_side(const CodedMatrix& matrix) {
  switch (matrix.order) {
    case CodeOrder::rows: return 8;
    case CodeOrder::gptq: return 64;  // four lines of the file
    case CodeOrder::awq: return 128;  // one
  }
  return 8;
}

std::size_t ordering_bytes(const CodedMatrix& matrix, std::int32_t rows) {
  return matrix.order == CodeOrder::rows ? 0 : ordered_pitch(matrix) * std::size_t(rows);
}

OrderedCodes ordered(const CodedMatrix& matrix, std::int32_t first, std::int32_t rows,
                     std::byte* to) {
  const std::size_t row_bytes = matrix.row_bytes();
  if (matrix.order == CodeOrder::rows) return {matrix.bytes.data() + first * row_bytes, row_bytes};
  const bool is_awq = matrix.order == CodeOrder::awq;
  KV_CHECK(!is_awq || (first % 8 == 0 && rows % 8 == 0), first, rows);
  const std::size_t in_word = is_awq ? 8 : 1;
  const WordArgs args{.words = matrix.bytes.data() + first / in_word * 4,
                      .pitch = matrix.N / in_word,
                      .rows = rows,
                      .K = matrix.K,
                      .row_words = static_cast<std::int32_t>(row_bytes / 4),
                      .to = to,
                      .to_pitch = ordered_pitch(matrix)};
  if (is_awq)
    HWY_DYNAMIC_DISPATCH(order_awq)(args);
  else
    HWY_DYNAMIC_DISPATCH(order_gptq)(args);
  return {to, args.to_pitch};
}

void decode(const CodedMatrix& matrix, OrderedCodes codes, std::int32_t first, std::int32_t rows,
            Dtype to, std::byte* values) {
  KV_CHECK(to == Dtype::f32 || to == Dtype::bf16, int(to));
  KV_CHECK(matrix.groups.empty() || matrix.K % kGroupedColumns == 0, matrix.K);
  thread_local RowRoom room;
  for (std::int32_t row = 0; row < rows; ++row) {
    RowArgs args = args_of(matrix, first + row, to, room);
    args.codes = codes.first + row * codes.pitch;
    args.values = values + std::size_t(row) * matrix.K * bytes_of(to);
    HWY_DYNAMIC_DISPATCH(decode_row)(args);
  }
}

std::vector<std::byte> values_of(const CodedMatrix& matrix, Dtype to) {
  KV_CHECK(matrix.bytes.size() == matrix.code_bytes(), matrix.bytes.size(), matrix.N, matrix.K);
  const std::size_t row_bytes = std::size_t(matrix.K) * bytes_of(to);
  std::vector<std::byte> values(row_bytes * matrix.N);
  const std::int32_t together = rows_side_by_side(matrix);
#pragma omp parallel
  {
    LineVector<std::byte> room(ordering_bytes(matrix, together));
#pragma omp for
    for (std::int32_t row = 0; row < matrix.N; row += together) {
      const std::int32_t rows = std::min(together, matrix.N - row);
      decode(matrix, ordered(matrix, row, rows, room.data()), row, rows, to,
             values.data() + row * row_bytes);
    }
  }
  return values;
}

}  // namespace kvhive
#endif
