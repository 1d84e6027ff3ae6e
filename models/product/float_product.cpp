// Products by f32, with weights of bf16, f16 or f32 that become floats in registers. A bf16 is the
// upper half of a float, so a vector of them becomes two of floats by a mask and a shift: of the
// elements at odd places and of those at even ones. Rows of x are packed in the same order.
//
// The order of additions follows from K alone: as many sums as a vector has lanes over every
// kBlockDepth elements, folded, then the next. With vectors of 512 bits it is that of
// dot_product.cpp, and so are the bits: where multiplications are the faster way of dot products
// (dot_way.hpp), this is their kernel.
//
// Few rows read the weights once, as fast as memory gives them, and make floats of them in
// registers: some columns for all rows, a few rows at a time, while the next columns are fetched.
// Halves of a step take turns, so that a tile's sums and weights fit into the registers.
// For many rows the floats of a task's weights are written once, and stay in L2; a tile
// of rows stays in L1 for kPieceDepth elements while all columns pass by. Meanwhile the columns'
// sums wait in memory. Lines of both lie so that no two of a tile have the same place in L1.

#include "models/product/float_product.hpp"

#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "kernels/cpu/instructions/denormals.hpp"

// SSSE3 is too old to be worth its compile time.
#define HWY_DISABLED_TARGETS HWY_SSSE3
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "models/product/float_product.cpp"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "models/product/float_sums-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace kvhive {
namespace HWY_NAMESPACE {
namespace {
namespace hn = hwy::HWY_NAMESPACE;
using namespace float_product_sizes;

constexpr bool kIsWide = HWY_TARGET <= HWY_AVX3;  ///< 32 registers
/// Sums of so many rows by so many columns fill half or three quarters of the registers. The fewest
/// rows take columns from some places of memory at once.
constexpr std::int32_t kFewestRows = kIsWide ? 4 : 3;
constexpr std::int32_t kFewRows = kIsWide ? 4 : 6, kFewColumns = kIsWide ? 4 : 2;
constexpr std::int32_t kFetchedColumns = 16;
constexpr std::int64_t kFetchedBytes = 1024;
constexpr int kIntoL2 = 2;
constexpr std::int32_t kManyRows = kIsWide ? 8 : 4;
static_assert(kManyRows <= kMostRows);
/// More are many. Measured on a Zen 3, and for wide vectors on a Xeon.
constexpr std::int32_t kReadOnceRows = kIsWide ? 16 : 24;

std::int32_t read_once_rows() { return kReadOnceRows; }

std::int32_t smaller(std::int32_t a, std::int32_t b) { return a < b ? a : b; }

// Weights of a type: half() makes floats of one half of kStep elements.

struct OfBf16 {
  static constexpr std::int32_t kBytes = 2;
  static constexpr bool kTakesTurns = true;  ///< elements at odd places come first
  template <int kHalf>
  static HWY_INLINE Sum half(const std::byte* from) {
    const Floats d;
    const hn::RebindToUnsigned<Floats> d32;
#if HWY_TARGET == HWY_SCALAR
    std::uint32_t two;
    __builtin_memcpy(&two, from, sizeof two);
    const auto both = hn::Set(d32, two);
#else
    const hn::Repartition<std::uint8_t, Floats> d8;
    const auto both = hn::BitCast(d32, hn::LoadU(d8, reinterpret_cast<const std::uint8_t*>(from)));
#endif
    if constexpr (kHalf == 0)
      return hn::BitCast(d, hn::And(both, hn::Set(d32, 0xffff0000u)));
    else
      return hn::BitCast(d, hn::ShiftLeft<16>(both));
  }
};

struct OfF16 {
  static constexpr std::int32_t kBytes = 2;
  static constexpr bool kTakesTurns = false;
  template <int kHalf>
  static HWY_INLINE Sum half(const std::byte* from) {
    const Floats d;
    const hn::Rebind<hwy::float16_t, Floats> d16;
    alignas(64) hwy::float16_t elements[kLanes];
    __builtin_memcpy(elements, from + kHalf * sizeof elements, sizeof elements);
    return hn::PromoteTo(d, hn::Load(d16, elements));
  }
};

struct OfF32 {
  static constexpr std::int32_t kBytes = 4;
  static constexpr bool kTakesTurns = false;
  template <int kHalf>
  static HWY_INLINE Sum half(const std::byte* from) {
    const Floats d;
    from += kHalf * sizeof(float) * kLanes;
#if HWY_TARGET == HWY_SCALAR
    float value;
    __builtin_memcpy(&value, from, sizeof value);
    return hn::Set(d, value);
#else
    // Not by way of an array: GCC writes that by halves, and reading it back waits for them.
    const hn::Repartition<std::uint8_t, Floats> d8;
    return hn::BitCast(d, hn::LoadU(d8, reinterpret_cast<const std::uint8_t*>(from)));
#endif
  }
};

/// Rounds kStep elements to bf16: those at odd places first.
#if HWY_TARGET == HWY_SCALAR
void round_step(const float* from, float* to) {
  static_assert(kStep == 2);
  to[0] = float_of_bf16(bf16_of_float(from[1]));
  to[1] = float_of_bf16(bf16_of_float(from[0]));
}
#else
HWY_INLINE Sum rounded(Sum value) {
  const Floats d;
  const hn::RebindToUnsigned<Floats> d32;
  const auto bits = hn::BitCast(d32, value);
  const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(d32, 1));
  const auto nearest = hn::Add(bits, hn::Add(odd, hn::Set(d32, 0x7fff)));
  const auto quiet = hn::Or(bits, hn::Set(d32, 0x400000));
  const auto is_nan = hn::RebindMask(d32, hn::IsNaN(value));
  return hn::BitCast(d, hn::And(hn::IfThenElse(is_nan, quiet, nearest), hn::Set(d32, 0xffff0000u)));
}

void round_step(const float* from, float* to) {
  const Floats d;
  const Sum low = rounded(hn::LoadU(d, from)), high = rounded(hn::LoadU(d, from + kLanes));
  hn::Store(hn::ConcatOdd(d, high, low), d, to);
  hn::Store(hn::ConcatEven(d, high, low), d, to + kLanes);
}
#endif

/// Lays a row out in the order in which the weights are loaded.
template <class Weights>
void pack_row(const PackArgs& args) {
  const std::int32_t K = args.shape.K;
  const float* const x = args.x + std::int64_t{args.first_row} * K;
  float* const to = reinterpret_cast<float*>(args.packed) + args.first_row * packed_row(K);
  if constexpr (!Weights::kTakesTurns) {
    __builtin_memcpy(to, x, sizeof(float) * static_cast<std::size_t>(K));
    for (std::int64_t k = K; k < padded(K); ++k) to[k] = 0;
  } else {
    std::int32_t k = 0;
    for (; k + kStep <= K; k += kStep) round_step(x + k, to + k);
    if (k < K) {
      float rest[kStep] = {};
      __builtin_memcpy(rest, x + k, sizeof(float) * static_cast<std::size_t>(K - k));
      round_step(rest, to + k);
      k += kStep;
    }
    for (; k < padded(K); ++k) to[k] = 0;
  }
}

/// A tile: some rows by some columns, over some elements of K, which end no later than their block.
template <int kColumns>
struct Place {
  std::int32_t first_row = 0;  ///< of the task
  std::int32_t column[kColumns] = {};
  std::int32_t k = 0;
  std::int32_t depth = 0;

  /// Columns behind the last are computed and forgotten.
  std::int32_t source(int j, const ProductArgs& args) const {
    return column[j] < args.columns ? column[j] : column[0];
  }
};

template <int kRows>
HWY_INLINE void rows_of(const ProductArgs& args, std::int32_t first_row, std::int32_t k,
                        const float* (&rows)[kRows]) {
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) rows[r] = packed_x(args, first_row + r) + k;
}

/// Folds the sums of a block and adds them to y.
template <int kRows, int kColumns>
HWY_INLINE void finish_block(const ProductArgs& args, const Place<kColumns>& at,
                             const Sum (&sums)[kRows][kColumns]) {
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 4
    for (int j = 0; j < kColumns; ++j) {
      const float sum = folded(sums[r][j]);
      if (at.column[j] < args.columns)
        finish_sum(args, at.first_row + r, at.column[j], at.k + at.depth, sum);
    }
}

// -- few rows -------------------------------------------------------------------------------------

/// Adds half a step of each column to the sums.
template <int kHalf, class Weights, int kRows, int kColumns>
HWY_INLINE void add_half(const float* const (&x)[kRows], const std::byte* const (&w)[kColumns],
                         Sum (&sums)[kRows][kColumns]) {
  const Floats d;
  Sum columns[kColumns];
#pragma GCC unroll 4
  for (int j = 0; j < kColumns; ++j) columns[j] = Weights::template half<kHalf>(w[j]);
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
    const Sum of_row = hn::LoadU(d, x[r] + kHalf * kLanes);
#pragma GCC unroll 4
    for (int j = 0; j < kColumns; ++j) sums[r][j] = hn::MulAdd(columns[j], of_row, sums[r][j]);
  }
}

/// What a tile fetches into L2 meanwhile: of what lies so many bytes ahead one of some parts, so
/// that each of some passes over the columns fetches as much. A part is some of the
/// columns, as measured on a Xeon, or a part of each, where a tile has but two.
struct Fetch {
  std::int64_t ahead = 0;
  std::int32_t part = 0, parts = 1;
};

/// A tile over a whole block.
template <class Weights, int kRows, int kColumns>
void multiply_few(const ProductArgs& args, const Place<kColumns>& at, Fetch fetch) {
  const float* rows[kRows];
  rows_of(args, at.first_row, at.k, rows);
  const std::byte* w[kColumns];
  for (int j = 0; j < kColumns; ++j)
    w[j] = args.w + (std::int64_t{at.source(j, args)} * args.shape.K + at.k) * Weights::kBytes;
  Sum sums[kRows][kColumns];
#pragma GCC unroll 8
  for (auto& row : sums)
#pragma GCC unroll 4
    for (Sum& sum : row) sum = hn::Zero(Floats());
  const auto add = [&](std::int32_t k, const std::byte* const(&from)[kColumns]) HWY_ATTR {
    const float* x[kRows];
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) x[r] = rows[r] + k;
    add_half<0, Weights>(x, from, sums);
    add_half<1, Weights>(x, from, sums);
  };
  [[maybe_unused]] const std::int64_t fetch_step =
      std::int64_t{kStep} * Weights::kBytes / fetch.parts;
  [[maybe_unused]] std::int64_t fetched = fetch.ahead + at.depth / kStep * fetch.part * fetch_step;
  std::int32_t k = 0;
#pragma GCC unroll 1
  for (; k + kStep <= at.depth; k += kStep) {
    const std::byte* here[kColumns];
#pragma GCC unroll 4
    for (int j = 0; j < kColumns; ++j) here[j] = w[j] + std::int64_t{k} * Weights::kBytes;
    if constexpr (kIsWide) {
      for (std::int32_t j = fetch.part; j < kColumns; j += fetch.parts)
        __builtin_prefetch(here[j] + fetch.ahead, 0, kIntoL2);
    } else {
#pragma GCC unroll 4
      for (int j = 0; j < kColumns; ++j) __builtin_prefetch(w[j] + fetched, 0, kIntoL2);
      fetched += fetch_step;
    }
    add(k, here);
  }
  if (k < at.depth) {
    std::byte rest[kColumns][std::size_t{kStep} * Weights::kBytes] = {};
    const std::byte* here[kColumns];
    for (int j = 0; j < kColumns; ++j) {
      __builtin_memcpy(rest[j], w[j] + std::int64_t{k} * Weights::kBytes,
                       static_cast<std::size_t>((at.depth - k) * Weights::kBytes));
      here[j] = rest[j];
    }
    add(k, here);
  }
  finish_block<kRows, kColumns>(args, at, sums);
}

/// So many rows, at most kMostRows.
template <class Weights, int kMostRows, int kColumns>
void multiply_few(const ProductArgs& args, std::int32_t rows, const Place<kColumns>& at,
                  Fetch fetch) {
  if constexpr (kMostRows > 1)
    if (rows < kMostRows) return multiply_few<Weights, kMostRows - 1>(args, rows, at, fetch);
  multiply_few<Weights, kMostRows>(args, at, fetch);
}

/// Weights are read once: some long runs of memory side by side.
template <class Weights, int kMostRows, int kStreams>
void multiply_streams(const ProductArgs& args) {
  const std::int32_t apart = (args.columns + kStreams - 1) / kStreams;
  for (std::int32_t n = 0; n < apart; ++n)
    for (std::int32_t k = 0; k < args.shape.K; k += kBlockDepth) {
      Place<kStreams> at{0, {}, k, smaller(kBlockDepth, args.shape.K - k)};
      for (int j = 0; j < kStreams; ++j) at.column[j] = n + j * apart;
      multiply_few<Weights, kMostRows>(args, args.rows, at, {kFetchedBytes, 0, 1});
    }
}

template <class Weights>
void multiply_few_rows(const ProductArgs& args) {
  if (args.rows <= kFewestRows) {
    // Three rows by four columns need one register more than AVX2 has.
    if constexpr (kIsWide)
      multiply_streams<Weights, 4, 4>(args);
    else if (args.rows == kFewestRows)
      multiply_streams<Weights, kFewestRows, 3>(args);
    else
      multiply_streams<Weights, 2, 4>(args);
    return;
  }
  // Some columns stay in L2 for all rows; meanwhile those behind them are fetched, evenly.
  const std::int32_t passes = (args.rows + kFewRows - 1) / kFewRows;
  const std::int64_t ahead = std::int64_t{kFetchedColumns} * args.shape.K * Weights::kBytes;
  for (std::int32_t k = 0; k < args.shape.K; k += kBlockDepth)
    for (std::int32_t first = 0; first < args.columns; first += kFetchedColumns)
      for (std::int32_t pass = 0, row = 0; pass < passes; ++pass) {
        const std::int32_t rows = (args.rows - row) / (passes - pass);
        const std::int32_t end = smaller(first + kFetchedColumns, args.columns);
        for (std::int32_t n = first; n < end; n += kFewColumns) {
          Place<kFewColumns> at{row, {}, k, smaller(kBlockDepth, args.shape.K - k)};
          for (int j = 0; j < kFewColumns; ++j) at.column[j] = n + j;
          multiply_few<Weights, kFewRows>(args, rows, at, {ahead, pass, passes});
        }
        row += rows;
      }
}

// -- many rows ------------------------------------------------------------------------------------

/// Writes the floats of the task's weights over a block, column after column.
template <class Weights>
void spread(const ProductArgs& args, std::int32_t block, std::int32_t depth, float* to) {
  const Floats d;
  for (std::int32_t n = 0; n < args.columns; ++n, to += kLine) {
    const std::byte* w = args.w + (std::int64_t{n} * args.shape.K + block) * Weights::kBytes;
    std::int32_t k = 0;
    const auto store = [&](const std::byte* from) HWY_ATTR {
      hn::Store(Weights::template half<0>(from), d, to + k);
      hn::Store(Weights::template half<1>(from), d, to + k + kLanes);
    };
    for (; k + kStep <= depth; k += kStep) store(w + std::int64_t{k} * Weights::kBytes);
    if (k == depth) continue;
    std::byte rest[std::size_t{kStep} * Weights::kBytes] = {};
    __builtin_memcpy(rest, w + std::int64_t{k} * Weights::kBytes,
                     static_cast<std::size_t>((depth - k) * Weights::kBytes));
    store(rest);
  }
}

/// A tile over a piece of a block.
///
/// \param lines    of the block's columns
/// \param waiting  the tile's sums, between two pieces
template <int kRows>
void multiply_piece(const ProductArgs& args, const Place<kManyColumns>& at, const float* lines,
                    float* waiting) {
  const Floats d;
  const std::int32_t begin = at.k % kBlockDepth, end = begin + at.depth;
  Sum sums[kRows][kManyColumns];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 4
    for (int j = 0; j < kManyColumns; ++j)
      sums[r][j] =
          begin == 0 ? hn::Zero(d) : hn::Load(d, waiting + (r * kManyColumns + j) * kLanes);
  const float* rows[kRows];
  rows_of(args, at.first_row, at.k, rows);
  const float* columns[kManyColumns];
  for (int j = 0; j < kManyColumns; ++j)
    columns[j] = lines + std::int64_t{at.source(j, args)} * kLine + begin;
  const std::int64_t whole_steps = (std::int64_t{at.depth} + kStep - 1) / kStep * kStep;
  // Unrolled, GCC moves some sums between registers in each step.
#pragma GCC unroll 1
  for (std::int64_t k = 0; k < whole_steps; k += kLanes) {
    Sum w[kManyColumns];
#pragma GCC unroll 4
    for (int j = 0; j < kManyColumns; ++j) w[j] = hn::Load(d, columns[j] + k);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      Sum x = hn::Load(d, rows[r] + k);
#if HWY_TARGET <= HWY_AVX3
      asm("" : "+v"(x.raw));  // in a register: otherwise GCC loads it for each column
#endif
#pragma GCC unroll 4
      for (int j = 0; j < kManyColumns; ++j) sums[r][j] = hn::MulAdd(w[j], x, sums[r][j]);
    }
  }
  if (end == kBlockDepth || at.k + at.depth == args.shape.K)
    return finish_block<kRows, kManyColumns>(args, at, sums);
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 4
    for (int j = 0; j < kManyColumns; ++j)
      hn::Store(sums[r][j], d, waiting + (r * kManyColumns + j) * kLanes);
}

template <int kRows>
void multiply_rows(const ProductArgs& args, std::int32_t first_row, std::int32_t block,
                   const float* lines, float* waiting) {
  const std::int32_t end = smaller(block + kBlockDepth, args.shape.K);
  for (std::int32_t k = block; k < end; k += kPieceDepth) {
    float* of_tile = waiting;
    for (std::int32_t n = 0; n < args.columns; n += kManyColumns) {
      multiply_piece<kRows>(args, {first_row, {n, n + 1, n + 2}, k, smaller(kPieceDepth, end - k)},
                            lines, of_tile);
      of_tile += kRows * kManyColumns * kLanes;
    }
  }
}

template <class Weights>
void multiply_many_rows(const ProductArgs& args) {
  float* const lines = reinterpret_cast<float*>(args.scratch);
  float* const waiting = lines + std::int64_t{args.columns} * kLine;
  for (std::int32_t block = 0; block < args.shape.K; block += kBlockDepth) {
    spread<Weights>(args, block, smaller(kBlockDepth, args.shape.K - block), lines);
    std::int32_t row = 0;
    for (; row + kManyRows <= args.rows; row += kManyRows)
      multiply_rows<kManyRows>(args, row, block, lines, waiting);
    for (; row + 2 <= args.rows; row += 2) multiply_rows<2>(args, row, block, lines, waiting);
    if (row < args.rows) multiply_rows<1>(args, row, block, lines, waiting);
  }
}

template <class Weights>
void multiply_task(const ProductArgs& args) {
  const WithoutDenormals none;
  if (args.rows <= kReadOnceRows)
    multiply_few_rows<Weights>(args);
  else
    multiply_many_rows<Weights>(args);
}

void pack_bf16(const PackArgs& args) { pack_row<OfBf16>(args); }
void pack_plain(const PackArgs& args) { pack_row<OfF32>(args); }
void multiply_bf16(const ProductArgs& args) { multiply_task<OfBf16>(args); }
void multiply_f16(const ProductArgs& args) { multiply_task<OfF16>(args); }
void multiply_f32(const ProductArgs& args) { multiply_task<OfF32>(args); }

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace kvhive
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvhive {
namespace {

HWY_EXPORT(pack_bf16);
HWY_EXPORT(pack_plain);
HWY_EXPORT(multiply_bf16);
HWY_EXPORT(multiply_f16);
HWY_EXPORT(multiply_f32);
HWY_EXPORT(read_once_rows);

bool are_many(std::int32_t rows) { return rows > HWY_DYNAMIC_DISPATCH(read_once_rows)(); }

/// Of a task with many rows. Their floats are to stay in L2 while all rows of x pass through it:
/// with twice as many columns, x passes half as often.
std::int32_t columns_at_most() {
  using namespace float_product_sizes;
  static const long l2 = sysconf(_SC_LEVEL2_CACHE_SIZE);  // 0 where it is not known
  for (const std::int32_t columns : {72, 36})
    if (columns * kLine * long{sizeof(float)} <= l2 / 3) return columns;
  return l2 > 0 ? 24 : 36;
}

/// Of a task with many. All columns pass one after the other while its rows of x stay in L3, where
/// others want some of it, too.
std::int32_t rows_at_most(std::int32_t K) {
  constexpr std::int64_t kInL3 = 4 << 20;  // bytes
  const std::int64_t row = float_product_sizes::packed_row(K) * std::int64_t{sizeof(float)};
  return static_cast<std::int32_t>(std::clamp<std::int64_t>(kInL3 / row / 8 * 8, 64, 256));
}

ProductBlocking blocking(const ProductShape& shape, int threads) {
  using namespace float_product_sizes;
  constexpr std::int32_t kWeightsInL2 = 256 << 10;  // bytes
  const std::int32_t depth = std::min(shape.K, kBlockDepth);
  const std::int32_t even = std::max(4, shape.N / (4 * threads));
  const bool is_large = are_many(shape.rows);
  const std::int32_t columns = is_large ? columns_at_most() : kWeightsInL2 / (2 * depth);
  return {1, is_large ? std::min(shape.rows, rows_at_most(shape.K)) : shape.rows,
          std::max(4, std::min(even, columns) / 4 * 4)};
}

std::size_t packed_bytes(const ProductShape& shape) {
  return std::size_t(shape.rows) * std::size_t(float_product_sizes::packed_row(shape.K)) *
         sizeof(float);
}

std::size_t scratch_bytes(const ProductShape& shape, const ProductBlocking& cut) {
  using namespace float_product_sizes;
  if (!are_many(shape.rows)) return 0;
  constexpr std::size_t kVector = 16;  // floats, at most
  const auto columns = std::size_t(cut.columns);
  return sizeof(float) * (columns * kLine + (columns + kManyColumns - 1) * kMostRows * kVector);
}

/// Measured on a Cascade Lake: 4 rows take 1.3 times as long as one read of the weights. With 2
/// and 1 << 26, one sequence's products were all one thread's.
constexpr std::int64_t kReadingRows = 12, kSerialWork = 1 << 25;

template <auto Pack, auto Multiply>
constexpr ProductKernel kKernel{blocking,
                                packed_bytes,
                                [](const PackArgs& args) { Pack()(args); },
                                scratch_bytes,
                                [](const ProductArgs& args) { Multiply()(args); },
                                kReadingRows,
                                kSerialWork};

}  // namespace

const ProductKernel& float_product(Dtype dtype) {
  constexpr auto pack_plainly = [] { return HWY_DYNAMIC_DISPATCH(pack_plain); };
  switch (dtype) {
    case Dtype::bf16:
      return kKernel<[] { return HWY_DYNAMIC_DISPATCH(pack_bf16); },
                     [] { return HWY_DYNAMIC_DISPATCH(multiply_bf16); }>;
    case Dtype::f16:
      return kKernel<pack_plainly, [] { return HWY_DYNAMIC_DISPATCH(multiply_f16); }>;
    default: return kKernel<pack_plainly, [] { return HWY_DYNAMIC_DISPATCH(multiply_f32); }>;
  }
}

}  // namespace kvhive
#endif
