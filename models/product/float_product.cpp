// Products by f32, with weights of bf16, f16 or f32 that become floats in registers. A bf16 is the
// upper half of a float, so a vector of them becomes two of floats by a shift and a mask: of the
// elements at even places and of those at odd ones. Rows of x are packed in the same order.
//
// The order of additions follows from K alone: as many sums as a vector has lanes over every
// kBlockDepth elements, folded, then the next.

#include "models/product/float_product.hpp"

#include <algorithm>
#include <cstring>

// SSSE3 is too old to be worth its compile time.
#define HWY_DISABLED_TARGETS HWY_SSSE3
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "models/product/float_product.cpp"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"

#ifndef KVHIVE_FLOAT_PRODUCT_ONCE
#define KVHIVE_FLOAT_PRODUCT_ONCE
namespace kvhive {
namespace float_product_sizes {

constexpr std::int32_t kBlockDepth = 2048;  ///< elements of K that are added up at a time
constexpr std::int32_t kPadding = 32;       ///< a packed row is filled up with zeros to this

inline std::int64_t packed_row(std::int32_t K) { return (K + kPadding - 1) / kPadding * kPadding; }

}  // namespace float_product_sizes
}  // namespace kvhive
#endif

HWY_BEFORE_NAMESPACE();
namespace kvhive {
namespace HWY_NAMESPACE {
namespace {
namespace hn = hwy::HWY_NAMESPACE;
using namespace float_product_sizes;

#if HWY_TARGET == HWY_SCALAR
using Floats = hn::Simd<float, 1, 0>;
#else
using Floats = hn::ScalableTag<float>;
#endif
using Sum = hn::Vec<Floats>;

constexpr std::int32_t kLanes = hn::MaxLanes(Floats());
constexpr std::int32_t kStep = 2 * kLanes;
static_assert(kPadding % kStep == 0);
/// Rows that are multiplied with 4 columns at a time: their sums fill half or three quarters of the
/// registers.
constexpr std::int32_t kRowsAtOnce = HWY_TARGET <= HWY_AVX3 ? 4 : 3;

std::int32_t smaller(std::int32_t a, std::int32_t b) { return a < b ? a : b; }

/// kStep weights.
struct Pair {
  Sum first, second;
};

struct OfBf16 {
  static constexpr std::int32_t kBytes = 2;
  static constexpr bool kTakesTurns = true;  ///< elements at even places come first
  static HWY_INLINE Pair load(const std::byte* from) {
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
    return {hn::BitCast(d, hn::ShiftLeft<16>(both)),
            hn::BitCast(d, hn::And(both, hn::Set(d32, 0xffff0000u)))};
  }
};

struct OfF16 {
  static constexpr std::int32_t kBytes = 2;
  static constexpr bool kTakesTurns = false;
  static HWY_INLINE Pair load(const std::byte* from) {
    const Floats d;
    const hn::Rebind<hwy::float16_t, Floats> d16;
    alignas(64) hwy::float16_t halves[kStep];
    __builtin_memcpy(halves, from, sizeof halves);
    return {hn::PromoteTo(d, hn::Load(d16, halves)),
            hn::PromoteTo(d, hn::LoadU(d16, halves + kLanes))};
  }
};

struct OfF32 {
  static constexpr std::int32_t kBytes = 4;
  static constexpr bool kTakesTurns = false;
  static HWY_INLINE Pair load(const std::byte* from) {
    const Floats d;
    alignas(64) float values[kStep];
    __builtin_memcpy(values, from, sizeof values);
    return {hn::Load(d, values), hn::Load(d, values + kLanes)};
  }
};

/// Lays a row out in the order in which the weights are loaded.
template <class Weights>
void pack_row(const PackArgs& args) {
  const std::int32_t K = args.shape.K;
  const float* const x = args.x + std::int64_t{args.first_row} * K;
  float* const to = reinterpret_cast<float*>(args.packed) + args.first_row * packed_row(K);
  if constexpr (!Weights::kTakesTurns) {
    __builtin_memcpy(to, x, sizeof(float) * static_cast<std::size_t>(K));
    for (std::int64_t k = K; k < packed_row(K); ++k) to[k] = 0;
  } else {
    for (std::int32_t k = 0; k < packed_row(K); k += kStep)
      for (std::int32_t i = 0; i < kLanes; ++i)
        for (std::int32_t odd = 0; odd < 2; ++odd) {
          const std::int32_t from = k + 2 * i + odd;
          to[k + odd * kLanes + i] = from < K ? float_of_bf16(bf16_of_float(x[from])) : 0;
        }
  }
}

using Sums = float[kRowsAtOnce][4];

template <int kRows>
HWY_INLINE void add_step(const float* const* x, std::int64_t k, const Pair (&columns)[4],
                         Sum (&sums)[kRows][4]) {
  const Floats d;
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) {
    const Sum first = hn::LoadU(d, x[r] + k), second = hn::LoadU(d, x[r] + k + kLanes);
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) {
      sums[r][j] = hn::MulAdd(columns[j].first, first, sums[r][j]);
      sums[r][j] = hn::MulAdd(columns[j].second, second, sums[r][j]);
    }
  }
}

/// out[row][j] = x[row] . w[j] over `depth` elements, for kRows rows.
template <int kRows, class Weights>
void dot_tile(const float* x, std::int64_t x_stride, const std::byte* const* w, std::int32_t depth,
              Sums& out) {
  const Floats d;
  Sum sums[kRows][4];
  const float* rows[kRows];
  for (int r = 0; r < kRows; ++r) {
    rows[r] = x + r * x_stride;
    for (int j = 0; j < 4; ++j) sums[r][j] = hn::Zero(d);
  }
  const std::byte *w0 = w[0], *w1 = w[1], *w2 = w[2], *w3 = w[3];
  std::int32_t k = 0;
  for (; k + kStep <= depth; k += kStep) {
    const std::int64_t at = std::int64_t{k} * Weights::kBytes;
    const Pair columns[4] = {Weights::load(w0 + at), Weights::load(w1 + at), Weights::load(w2 + at),
                             Weights::load(w3 + at)};
    add_step<kRows>(rows, k, columns, sums);
  }
  if (k < depth) {
    constexpr std::size_t kStepBytes = std::size_t{kStep} * Weights::kBytes;
    std::byte rest[4][kStepBytes] = {};
    Pair columns[4];
    for (int j = 0; j < 4; ++j) {
      __builtin_memcpy(rest[j], w[j] + std::int64_t{k} * Weights::kBytes,
                       static_cast<std::size_t>((depth - k) * Weights::kBytes));
      columns[j] = Weights::load(rest[j]);
    }
    add_step<kRows>(rows, k, columns, sums);
  }
  for (int r = 0; r < kRows; ++r)
    for (int j = 0; j < 4; ++j) out[r][j] = hn::GetLane(hn::SumOfLanes(d, sums[r][j]));
}

/// Up to kRowsAtOnce rows times four columns, `apart` columns from each other, over one block of K.
template <class Weights>
void add_block(const ProductArgs& args, std::int32_t first_row, std::int32_t first_column,
               std::int32_t apart, std::int32_t k) {
  const std::int32_t K = args.shape.K;
  const std::int64_t stride = std::int64_t{K} * Weights::kBytes;
  const std::int32_t rows = smaller(kRowsAtOnce, args.rows - first_row);
  const std::int32_t depth = smaller(kBlockDepth, K - k);
  const float* x = reinterpret_cast<const float*>(args.packed) +
                   (args.first_row + first_row) * packed_row(K) + k;
  const std::byte* w[4];
  for (std::int32_t j = 0; j < 4; ++j) {
    const std::int32_t n = first_column + j * apart;
    w[j] =
        args.w + (n < args.columns ? n : first_column) * stride + std::int64_t{k} * Weights::kBytes;
  }
  Sums sums;
  switch (rows) {
    case 1: dot_tile<1, Weights>(x, packed_row(K), w, depth, sums); break;
    case 2: dot_tile<2, Weights>(x, packed_row(K), w, depth, sums); break;
    case 3: dot_tile<3, Weights>(x, packed_row(K), w, depth, sums); break;
    default: dot_tile<kRowsAtOnce, Weights>(x, packed_row(K), w, depth, sums); break;
  }
  const bool is_last = k + kBlockDepth >= K;
  for (std::int32_t r = 0; r < rows; ++r) {
    float* y = args.y + std::int64_t{first_row + r} * args.shape.N;
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

template <class Weights>
void multiply_task(const ProductArgs& args) {
  const std::int32_t quads = (args.columns + 3) / 4;
  if (args.rows <= kRowsAtOnce) {
    // Weights are read once: four long runs of memory side by side.
    for (std::int32_t i = 0; i < quads; ++i)
      for (std::int32_t k = 0; k < args.shape.K; k += kBlockDepth)
        add_block<Weights>(args, 0, i, quads, k);
    return;
  }
  for (std::int32_t k = 0; k < args.shape.K; k += kBlockDepth)
    for (std::int32_t row = 0; row < args.rows; row += kRowsAtOnce)
      for (std::int32_t i = 0; i < quads; ++i) add_block<Weights>(args, row, 4 * i, 1, k);
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

ProductBlocking blocking(const ProductShape& shape, int threads) {
  constexpr std::int32_t kWeightsInL2 = 256 << 10;  // bytes
  const std::int32_t depth = std::min(shape.K, float_product_sizes::kBlockDepth);
  const std::int32_t even = std::max(4, shape.N / (4 * threads));
  return {1, shape.rows, std::max(4, std::min(even, kWeightsInL2 / (2 * depth)) / 4 * 4)};
}

std::size_t packed_bytes(const ProductShape& shape) {
  return std::size_t(shape.rows) * std::size_t(float_product_sizes::packed_row(shape.K)) *
         sizeof(float);
}

std::size_t scratch_bytes(const ProductShape&, const ProductBlocking&) { return 0; }

/// Reading weights costs about as much as multiplying this many rows.
constexpr std::int64_t kReadingRows = 2;

}  // namespace

const ProductKernel& float_product(Dtype dtype) {
  static const ProductKernel bf16{
      blocking,
      packed_bytes,
      [](const PackArgs& args) { HWY_DYNAMIC_DISPATCH(pack_bf16)
                                 (args); },
      scratch_bytes,
      [](const ProductArgs& args) { HWY_DYNAMIC_DISPATCH(multiply_bf16)
                                    (args); },
      kReadingRows};
  static const ProductKernel f16{
      blocking,
      packed_bytes,
      [](const PackArgs& args) { HWY_DYNAMIC_DISPATCH(pack_plain)
                                 (args); },
      scratch_bytes,
      [](const ProductArgs& args) { HWY_DYNAMIC_DISPATCH(multiply_f16)
                                    (args); },
      kReadingRows};
  static const ProductKernel f32{
      blocking,
      packed_bytes,
      [](const PackArgs& args) { HWY_DYNAMIC_DISPATCH(pack_plain)
                                 (args); },
      scratch_bytes,
      [](const ProductArgs& args) { HWY_DYNAMIC_DISPATCH(multiply_f32)
                                    (args); },
      kReadingRows};
  switch (dtype) {
    case Dtype::bf16: return bf16;
    case Dtype::f16: return f16;
    default: return f32;
  }
}

}  // namespace kvhive
#endif
