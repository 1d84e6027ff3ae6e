// The product with bf16 weights for CPUs without bf16 instructions. A bf16 is the upper half of a
// float, so a vector of weights becomes two of floats by a shift and a mask: of the elements at
// even places and of those at odd ones. The rows of x are taken apart in the same way, so nothing
// need be put in order again. A row's sums are the same for any number of rows, as in
// bf16_product.cpp.

#include "models/product/bf16_product.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "models/product/bf16_float_product.cpp"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace kvhive {
namespace HWY_NAMESPACE {
namespace {
namespace hn = hwy::HWY_NAMESPACE;

constexpr std::int32_t kBlockDepth = kBf16ProductDepth;
/// Times 4 columns. Of 16 registers, 12 are sums, 3 have the rows' elements, one a column's.
constexpr std::int32_t kRowsAtOnce = 3;

std::int32_t smaller(std::int32_t a, std::int32_t b) { return a < b ? a : b; }

#if HWY_TARGET == HWY_SCALAR

struct Halves {
  static constexpr std::int32_t kStep = 2;
  using Sum = float;
  struct Pair {
    float even, odd;
  };
  static float widen(const std::byte* from) {
    const std::uint32_t bits = (std::uint32_t(from[0]) | std::uint32_t(from[1]) << 8) << 16;
    float value;
    __builtin_memcpy(&value, &bits, sizeof value);
    return value;
  }
  static Pair load(const std::byte* from) { return {widen(from), widen(from + 2)}; }
  static Sum zero() { return 0; }
  static Sum add_product(float a, float b, Sum sum) { return sum + a * b; }
  static float total(Sum sum) { return sum; }
};

#else

struct Halves {
  using D = hn::ScalableTag<float>;
  static constexpr std::int32_t kStep = 2 * hn::MaxLanes(D());
  using Sum = hn::Vec<D>;
  struct Pair {
    Sum even, odd;
  };
  static HWY_INLINE Pair load(const std::byte* from) {
    const D d;
    const hn::RebindToUnsigned<D> d32;
    const hn::Repartition<std::uint8_t, D> d8;
    const auto both = hn::BitCast(d32, hn::LoadU(d8, reinterpret_cast<const std::uint8_t*>(from)));
    return {hn::BitCast(d, hn::ShiftLeft<16>(both)),
            hn::BitCast(d, hn::And(both, hn::Set(d32, 0xffff0000u)))};
  }
  static HWY_INLINE Sum zero() { return hn::Zero(D()); }
  static HWY_INLINE Sum add_product(Sum a, Sum b, Sum sum) { return hn::MulAdd(a, b, sum); }
  static HWY_INLINE float total(Sum sum) { return hn::GetLane(hn::SumOfLanes(D(), sum)); }
};

#endif

using Sums = float[kRowsAtOnce][4];

/// Adds the products of the next Halves::kStep elements.
template <int kRows>
HWY_INLINE void add_step(const std::byte* const* x, const std::byte* const* w, std::int64_t at,
                         Halves::Sum (&sums)[kRows][4]) {
  Halves::Pair rows[kRows];
#pragma GCC unroll 3
  for (int r = 0; r < kRows; ++r) rows[r] = Halves::load(x[r] + at);
#pragma GCC unroll 4
  for (int j = 0; j < 4; ++j) {
    const Halves::Pair column = Halves::load(w[j] + at);
#pragma GCC unroll 3
    for (int r = 0; r < kRows; ++r) {
      sums[r][j] = Halves::add_product(column.even, rows[r].even, sums[r][j]);
      sums[r][j] = Halves::add_product(column.odd, rows[r].odd, sums[r][j]);
    }
  }
}

/// out[row][j] = x[row] . w[j] over `depth` elements, for kRows rows.
template <int kRows>
void dot_tile(const std::byte* x, std::int64_t x_stride, const std::byte* const* w,
              std::int32_t depth, Sums& out) {
  Halves::Sum sums[kRows][4];
  const std::byte* rows[kRows];
  for (int r = 0; r < kRows; ++r) {
    rows[r] = x + r * x_stride;
    for (int j = 0; j < 4; ++j) sums[r][j] = Halves::zero();
  }
  std::int32_t k = 0;
  for (; k + Halves::kStep <= depth; k += Halves::kStep) add_step<kRows>(rows, w, 2 * k, sums);
  if (k < depth) {
    std::byte rest[kRows + 4][2 * Halves::kStep] = {};
    const std::byte *rest_of_rows[kRows], *rest_of_columns[4];
    const auto copy = [&](int i, const std::byte* from) {
      __builtin_memcpy(rest[i], from + 2 * k, static_cast<std::size_t>(2 * (depth - k)));
      return rest[i];
    };
    for (int r = 0; r < kRows; ++r) rest_of_rows[r] = copy(r, rows[r]);
    for (int j = 0; j < 4; ++j) rest_of_columns[j] = copy(kRows + j, w[j]);
    add_step<kRows>(rest_of_rows, rest_of_columns, 0, sums);
  }
  for (int r = 0; r < kRows; ++r)
    for (int j = 0; j < 4; ++j) out[r][j] = Halves::total(sums[r][j]);
}

/// Up to kRowsAtOnce rows times four columns, `apart` columns from each other, over one block of K.
void add_block(const Bf16ProductArgs& args, std::int32_t first_row, std::int32_t first_column,
               std::int32_t apart, std::int32_t k) {
  const std::int64_t stride = 2 * std::int64_t{args.K};
  const std::int32_t rows = smaller(kRowsAtOnce, args.rows - first_row);
  const std::int32_t depth = smaller(kBlockDepth, args.K - k);
  const auto* x = reinterpret_cast<const std::byte*>(args.x) + first_row * stride + 2 * k;
  const std::byte* w[4];
  for (std::int32_t j = 0; j < 4; ++j) {
    const std::int32_t n = first_column + j * apart;
    w[j] = args.w + (n < args.columns ? n : first_column) * stride + 2 * k;
  }
  Sums sums;
  switch (rows) {
    case 1: dot_tile<1>(x, stride, w, depth, sums); break;
    case 2: dot_tile<2>(x, stride, w, depth, sums); break;
    default: dot_tile<3>(x, stride, w, depth, sums); break;
  }
  const bool is_last = k + kBlockDepth >= args.K;
  for (std::int32_t r = 0; r < rows; ++r) {
    float* y = args.y + (first_row + r) * args.y_stride;
    for (std::int32_t j = 0; j < 4; ++j) {
      const std::int32_t n = first_column + j * apart;
      if (n >= args.columns) break;
      float sum = sums[r][j];
      if (k > 0) sum += y[n];
      if (is_last && args.bias != nullptr) sum += args.bias[n];
      y[n] = sum;
    }
  }
}

void product(const Bf16ProductArgs& args) {
  const std::int32_t quads = (args.columns + 3) / 4;
  if (args.rows <= kRowsAtOnce) {
    // Weights are read once: four long runs of memory side by side.
    for (std::int32_t i = 0; i < quads; ++i)
      for (std::int32_t k = 0; k < args.K; k += kBlockDepth) add_block(args, 0, i, quads, k);
    return;
  }
  for (std::int32_t k = 0; k < args.K; k += kBlockDepth)
    for (std::int32_t row = 0; row < args.rows; row += kRowsAtOnce)
      for (std::int32_t i = 0; i < quads; ++i) add_block(args, row, 4 * i, 1, k);
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace kvhive
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvhive {

HWY_EXPORT(product);

void bf16_float_product(const Bf16ProductArgs& args) { HWY_DYNAMIC_DISPATCH(product)(args); }

}  // namespace kvhive
#endif
