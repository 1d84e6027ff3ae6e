// Sums over the lanes of a vector in an order that does not depend on the library. Included once
// per instruction set.

#if defined(KVHIVE_FOLD_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef KVHIVE_FOLD_INL
#undef KVHIVE_FOLD_INL
#else
#define KVHIVE_FOLD_INL
#endif

#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace kvhive {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

#if HWY_TARGET != HWY_SCALAR

/// Adds up fours of lanes, each by each: the upper half to the lower, until four are left.
template <class D, class V>
HWY_INLINE auto fold_to_four(D d, V v) {
  if constexpr (hn::MaxLanes(d) <= 4) {
    return v;
  } else {
    const hn::Half<D> half;
    return fold_to_four(half, hn::Add(hn::LowerHalf(half, v), hn::UpperHalf(half, v)));
  }
}

#endif  // HWY_TARGET != HWY_SCALAR

}  // namespace HWY_NAMESPACE
}  // namespace kvhive
HWY_AFTER_NAMESPACE();

#endif  // KVHIVE_FOLD_INL
