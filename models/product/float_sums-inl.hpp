// How products by f32 add up: what all their kernels share. Included once per instruction set.

#if defined(KVHIVE_FLOAT_SUMS_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef KVHIVE_FLOAT_SUMS_INL
#undef KVHIVE_FLOAT_SUMS_INL
#else
#define KVHIVE_FLOAT_SUMS_INL
#endif

#include "hwy/highway.h"
#include "kernels/cpu/instructions/fold-inl.hpp"
#include "models/product/product_kernel.hpp"

#ifndef KVHIVE_FLOAT_SUMS_ONCE
#define KVHIVE_FLOAT_SUMS_ONCE
namespace kvhive {
namespace float_product_sizes {

constexpr std::int32_t kBlockDepth = 2048;  ///< elements of K that are added up at a time
constexpr std::int32_t kPieceDepth = 512;   ///< of these, for which many rows stay in L1
constexpr std::int32_t kPadding = 32;       ///< a packed row is filled up with zeros to this
constexpr std::int32_t kMostRows = 8;       ///< of a tile
constexpr std::int32_t kManyColumns = 3;    ///< of a tile with many rows
/// Rows that are multiplied together begin an eighth of a page apart, in pages of 4 KiB.
constexpr std::int32_t kPage = 1024, kApart = 128;    // floats
constexpr std::int32_t kLine = kBlockDepth + kApart;  // of a column's floats

inline std::int64_t padded(std::int32_t K) { return (K + kPadding - 1) / kPadding * kPadding; }
inline std::int64_t packed_row(std::int32_t K) {
  return (padded(K) + kPage - kApart - 1) / kPage * kPage + kApart;
}

}  // namespace float_product_sizes
}  // namespace kvhive
#endif

HWY_BEFORE_NAMESPACE();
namespace kvhive {
namespace HWY_NAMESPACE {
namespace {
namespace hn = hwy::HWY_NAMESPACE;

#if HWY_TARGET == HWY_SCALAR
using Floats = hn::Simd<float, 1, 0>;
#else
using Floats = hn::ScalableTag<float>;
#endif
using Sum = hn::Vec<Floats>;

constexpr std::int32_t kLanes = hn::MaxLanes(Floats());
constexpr std::int32_t kStep = 2 * kLanes;
static_assert(float_product_sizes::kPadding % kStep == 0);

HWY_INLINE const float* packed_x(const ProductArgs& args, std::int32_t row) {
  return reinterpret_cast<const float*>(args.packed) +
         (args.first_row + row) * float_product_sizes::packed_row(args.shape.K);
}

#if HWY_TARGET == HWY_SCALAR
HWY_INLINE float folded(Sum v) { return hn::GetLane(v); }
#else
/// The sum of all lanes, in the order of dot_product.cpp: within each four, then over the fours.
HWY_INLINE float folded(Sum v) {
  v = hn::Add(v, hn::Shuffle1032(v));
  v = hn::Add(v, hn::Shuffle2301(v));
  return hn::GetLane(fold_to_four(Floats(), v));
}
#endif

/// Adds the sum of a block, which ends at element `end` of K, to an element of y.
HWY_INLINE void finish_sum(const ProductArgs& args, std::int32_t row, std::int32_t column,
                           std::int32_t end, float sum) {
  float& y = args.y[std::int64_t{row} * args.shape.N + column];
  if (end > float_product_sizes::kBlockDepth) sum += y;
  if (end == args.shape.K && args.bias != nullptr) sum += args.bias[column];
  y = sum;
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace kvhive
HWY_AFTER_NAMESPACE();

#endif  // KVHIVE_FLOAT_SUMS_INL
