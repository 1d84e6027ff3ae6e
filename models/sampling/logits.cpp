// By Highway, as models/row_ops.cpp is. The order of additions follows from the length alone.

#include "models/sampling/logits.hpp"

#include <algorithm>
#include <limits>

#include "base/check.hpp"
#include "kernels/sampling.hpp"

// SSSE3 is too old to be worth its compile time.
#define HWY_DISABLED_TARGETS HWY_SSSE3
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "models/sampling/logits.cpp"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "hwy/contrib/math/math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kvhive {
namespace HWY_NAMESPACE {
namespace {
namespace hn = hwy::HWY_NAMESPACE;

using Doubles = hn::ScalableTag<double>;
using Halves = hn::Rebind<float, Doubles>;  ///< as many floats
constexpr std::size_t kDoubles = hn::MaxLanes(Doubles());
using Floats = hn::ScalableTag<float>;
constexpr std::size_t kFloats = hn::MaxLanes(Floats());

template <class D>
HWY_INLINE hn::Vec<D> usable(D d, hn::Vec<D> logits) {
  return hn::IfThenElse(hn::IsNaN(logits), hn::Set(d, -std::numeric_limits<float>::infinity()),
                        hn::Min(logits, hn::Set(d, std::numeric_limits<float>::max())));
}

float largest_of(const float* logits, std::size_t count) {
  const Floats d;
  auto most = hn::Set(d, -std::numeric_limits<float>::infinity());
  std::size_t i = 0;
  for (; i + kFloats <= count; i += kFloats)
    most = hn::Max(most, usable(d, hn::LoadU(d, logits + i)));
  float lanes[kFloats];
  hn::StoreU(most, d, lanes);
  float largest = *std::max_element(lanes, lanes + kFloats);
  for (; i < count; ++i) largest = std::max(largest, usable_logit(logits[i]));
  return largest;
}

std::size_t find_largest(const float* logits, std::size_t count) {
  const float largest = largest_of(logits, count);
  const Floats d;
  const auto wanted = hn::Set(d, largest);
  std::size_t i = 0;
  for (; i + kFloats <= count; i += kFloats)
    if (!hn::AllFalse(d, hn::Eq(usable(d, hn::LoadU(d, logits + i)), wanted))) break;
  while (usable_logit(logits[i]) != largest) ++i;
  return i;
}

/// Calls f(place, weights) for each vector. At the end, logits that there are not weigh 0.
template <class F>
HWY_INLINE void for_each_weight(const float* logits, std::size_t count, float largest,
                                double temperature, const F& f) {
  const Doubles d;
  const Halves half;
  const auto most = hn::Set(d, double{largest}), divisor = hn::Set(d, temperature);
  const auto weight = [&](const float* from) {
    const auto logit = hn::PromoteTo(d, usable(half, hn::LoadU(half, from)));
    return hn::Exp(d, hn::Div(hn::Sub(logit, most), divisor));
  };
  std::size_t i = 0;
  for (; i + kDoubles <= count; i += kDoubles) f(i, weight(logits + i));
  if (i == count) return;
  float rest[kDoubles];
  std::fill(rest, rest + kDoubles, -std::numeric_limits<float>::infinity());
  std::copy(logits + i, logits + count, rest);
  f(i, weight(rest));
}

void write_weights(const float* logits, std::size_t count, float largest, double temperature,
                   double* weights) {
  for_each_weight(logits, count, largest, temperature, [&](std::size_t i, hn::Vec<Doubles> some) {
    if (i + kDoubles <= count) return hn::StoreU(some, Doubles(), weights + i);
    double rest[kDoubles];
    hn::StoreU(some, Doubles(), rest);
    std::copy(rest, rest + (count - i), weights + i);
  });
}

double add_weights(const float* logits, std::size_t count, float largest) {
  const Doubles d;
  auto sums = hn::Zero(d);
  for_each_weight(logits, count, largest, 1.0,
                  [&](std::size_t, hn::Vec<Doubles> some) { sums = hn::Add(sums, some); });
  double lanes[kDoubles];
  hn::StoreU(sums, d, lanes);
  double total = 0;
  for (const double lane : lanes) total += lane;
  return total;
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace kvhive
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvhive {
namespace {

HWY_EXPORT(find_largest);
HWY_EXPORT(write_weights);
HWY_EXPORT(add_weights);

}  // namespace

std::size_t index_of_largest(std::span<const float> logits) {
  return HWY_DYNAMIC_DISPATCH(find_largest)(logits.data(), logits.size());
}

void relative_weights(std::span<const float> logits, float largest, double temperature,
                      std::span<double> weights) {
  KV_CHECK(weights.size() == logits.size(), weights.size(), logits.size());
  HWY_DYNAMIC_DISPATCH(write_weights)
  (logits.data(), logits.size(), largest, temperature, weights.data());
}

double total_weight(std::span<const float> logits, float largest) {
  return HWY_DYNAMIC_DISPATCH(add_weights)(logits.data(), logits.size(), largest);
}

}  // namespace kvhive
#endif
