// By Highway, so that the vectors are those of the arithmetic in use. A row's end is computed by
// the same instructions as the rest, from a copy that is filled up: an element's bits do not depend
// on its place.

#include "models/row_ops.hpp"

#include <omp.h>

#include <algorithm>
#include <cstddef>
#include <numbers>

#include "base/check.hpp"

// SSSE3 is too old to be worth its compile time.
#define HWY_DISABLED_TARGETS HWY_SSSE3
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "models/row_ops.cpp"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "hwy/contrib/math/math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kvhive {
namespace HWY_NAMESPACE {
namespace {
namespace hn = hwy::HWY_NAMESPACE;

using Floats = hn::ScalableTag<float>;
using Vector = hn::Vec<Floats>;
constexpr std::size_t kLanes = hn::MaxLanes(Floats());

Vector load(const float* from) { return hn::LoadU(Floats(), from); }

/// to = f(a, b), a vector at a time. `to` may be `a`.
template <class F>
HWY_INLINE void map(const float* a, const float* b, float* to, std::size_t count, const F& f) {
  std::size_t i = 0;
  for (; i + kLanes <= count; i += kLanes)
    hn::StoreU(f(load(a + i), load(b + i)), Floats(), to + i);
  if (i == count) return;
  float as[kLanes] = {}, bs[kLanes] = {};
  std::copy(a + i, a + count, as);
  std::copy(b + i, b + count, bs);
  hn::StoreU(f(load(as), load(bs)), Floats(), as);
  std::copy(as, as + (count - i), to + i);
}

/// In 16 partial sums whatever a vector's length is, added up pairwise.
float sum_of_squares(const float* x, std::size_t count) {
  constexpr std::size_t kSums = 16;
  float sums[kSums];
  const hn::CappedTag<float, kSums> d;
  constexpr std::size_t kStep = hn::MaxLanes(hn::CappedTag<float, kSums>());
  const auto add = [&](const float* from) {
    for (std::size_t s = 0; s < kSums; s += kStep) {
      const auto v = hn::LoadU(d, from + s);
      hn::StoreU(hn::MulAdd(v, v, hn::LoadU(d, sums + s)), d, sums + s);
    }
  };
  std::fill(sums, sums + kSums, 0.0f);
  std::size_t i = 0;
  for (; i + kSums <= count; i += kSums) add(x + i);
  if (i < count) {
    float rest[kSums] = {};
    std::copy(x + i, x + count, rest);
    add(rest);
  }
  for (std::size_t step = kSums / 2; step > 0; step /= 2)
    for (std::size_t s = 0; s < step; ++s) sums[s] += sums[s + step];
  return sums[0];
}

void norm_row(const float* x, const float* weight, float eps, float* out, std::size_t width) {
  const float mean = sum_of_squares(x, width) / static_cast<float>(width);
  const Vector scale = hn::Set(Floats(), 1 / __builtin_sqrtf(mean + eps));
  map(x, weight, out, width, [&](Vector v, Vector w) { return hn::Mul(hn::Mul(v, scale), w); });
}

/// x / (1 + exp(-y)). Beyond the bounds it is x or 0 already; e to less would be a denormal.
HWY_INLINE Vector divided_by_one_and_exp(Vector x, Vector y) {
  const Floats d;
  const Vector bounded = hn::Min(hn::Max(hn::Neg(y), hn::Set(d, -80.0f)), hn::Set(d, 104.0f));
  return hn::Div(x, hn::Add(hn::Set(d, 1.0f), hn::Exp(d, bounded)));
}

void silu_multiply_piece(float* gate, const float* up, std::size_t count) {
  map(gate, up, gate, count,
      [](Vector x, Vector u) { return hn::Mul(divided_by_one_and_exp(x, x), u); });
}

/// 0.5 x (1 + tanh(y)) is x / (1 + exp(-2y)).
void gelu_multiply_piece(float* gate, const float* up, std::size_t count) {
  constexpr auto kTwice = static_cast<float>(2 * std::numbers::sqrt2 * std::numbers::inv_sqrtpi);
  const Floats d;
  map(gate, up, gate, count, [&](Vector x, Vector u) {
    const Vector cubic = hn::Mul(hn::Mul(hn::Set(d, 0.044715f), x), hn::Mul(x, x));
    const Vector y = hn::Mul(hn::Set(d, kTwice), hn::Add(x, cubic));
    return hn::Mul(divided_by_one_and_exp(x, y), u);
  });
}

void soft_cap_piece(float* x, float cap, std::size_t count) {
  const Floats d;
  const Vector caps = hn::Set(d, cap);
  map(x, x, x, count,
      [&](Vector v, Vector) { return hn::Mul(caps, hn::Tanh(d, hn::Div(v, caps))); });
}

void scale_piece(float* x, float factor, std::size_t count) {
  const Vector factors = hn::Set(Floats(), factor);
  map(x, x, x, count, [&](Vector v, Vector) { return hn::Mul(v, factors); });
}

void add_piece(float* x, const float* y, std::size_t count) {
  map(x, y, x, count, [](Vector a, Vector b) { return hn::Add(a, b); });
}

/// (low, high) becomes (low cos - high sin, high cos + low sin).
void rotate_halves(float* low, float* high, const float* cosine, const float* sine,
                   std::size_t half) {
  const auto rotate = [](Vector a, Vector b, Vector c, Vector s, float* to_low, float* to_high) {
    const Floats d;
    hn::StoreU(hn::Sub(hn::Mul(a, c), hn::Mul(b, s)), d, to_low);
    hn::StoreU(hn::Add(hn::Mul(b, c), hn::Mul(a, s)), d, to_high);
  };
  std::size_t i = 0;
  for (; i + kLanes <= half; i += kLanes)
    rotate(load(low + i), load(high + i), load(cosine + i), load(sine + i), low + i, high + i);
  if (i == half) return;
  float ends[4][kLanes] = {};
  const float* const from[] = {low, high, cosine, sine};
  for (int part = 0; part < 4; ++part) std::copy(from[part] + i, from[part] + half, ends[part]);
  rotate(load(ends[0]), load(ends[1]), load(ends[2]), load(ends[3]), ends[0], ends[1]);
  std::copy(ends[0], ends[0] + (half - i), low + i);
  std::copy(ends[1], ends[1] + (half - i), high + i);
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace kvhive
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvhive {
namespace {

HWY_EXPORT(norm_row);
HWY_EXPORT(silu_multiply_piece);
HWY_EXPORT(gelu_multiply_piece);
HWY_EXPORT(soft_cap_piece);
HWY_EXPORT(scale_piece);
HWY_EXPORT(add_piece);
HWY_EXPORT(rotate_halves);

/// Elements below which threads are not woken: some ten microseconds of one core.
constexpr std::size_t kSerialElements = std::size_t{1} << 16;
constexpr std::size_t kPiece = std::size_t{1} << 13;

int threads_for(std::size_t elements) {
  return elements < kSerialElements ? 1 : omp_get_max_threads();
}

/// Calls f(first element, count) for all pieces of `elements`.
template <class F>
void for_each_piece(std::size_t elements, const F& f) {
#pragma omp parallel for num_threads(threads_for(elements))
  for (std::size_t i = 0; i < elements; i += kPiece) f(i, std::min(kPiece, elements - i));
}

}  // namespace

void rms_norm(std::span<const float> x, std::span<const float> weight, float eps,
              std::span<float> out) {
  const std::size_t width = weight.size();
  KV_CHECK(x.size() == out.size() && x.size() % width == 0, x.size(), out.size(), width);
  const std::size_t rows = x.size() / width;
  const auto run = &HWY_DYNAMIC_DISPATCH(norm_row);
#pragma omp parallel for num_threads(threads_for(x.size()))
  for (std::size_t row = 0; row < rows; ++row)
    run(&x[row * width], weight.data(), eps, &out[row * width], width);
}

void silu_multiply(std::span<float> gate, std::span<const float> up) {
  KV_CHECK(gate.size() == up.size(), gate.size(), up.size());
  const auto run = &HWY_DYNAMIC_DISPATCH(silu_multiply_piece);
  for_each_piece(gate.size(),
                 [&](std::size_t i, std::size_t count) { run(&gate[i], &up[i], count); });
}

void gelu_multiply(std::span<float> gate, std::span<const float> up) {
  KV_CHECK(gate.size() == up.size(), gate.size(), up.size());
  const auto run = &HWY_DYNAMIC_DISPATCH(gelu_multiply_piece);
  for_each_piece(gate.size(),
                 [&](std::size_t i, std::size_t count) { run(&gate[i], &up[i], count); });
}

void soft_cap(std::span<float> x, float cap) {
  const auto run = &HWY_DYNAMIC_DISPATCH(soft_cap_piece);
  for_each_piece(x.size(), [&](std::size_t i, std::size_t count) { run(&x[i], cap, count); });
}

void scale_in_place(std::span<float> x, float factor) {
  const auto run = &HWY_DYNAMIC_DISPATCH(scale_piece);
  for_each_piece(x.size(), [&](std::size_t i, std::size_t count) { run(&x[i], factor, count); });
}

void add_in_place(std::span<float> x, std::span<const float> y) {
  KV_CHECK(x.size() == y.size(), x.size(), y.size());
  const auto run = &HWY_DYNAMIC_DISPATCH(add_piece);
  for_each_piece(x.size(), [&](std::size_t i, std::size_t count) { run(&x[i], &y[i], count); });
}

void rotate_heads(std::span<float> rows, std::size_t heads, std::span<const float> cosines,
                  std::span<const float> sines, std::size_t half) {
  const std::size_t tokens = cosines.size() / half;
  KV_CHECK(rows.size() == tokens * heads * 2 * half, rows.size(), tokens, heads, half);
  KV_CHECK(cosines.size() == tokens * half && sines.size() == cosines.size(), cosines.size());
  const auto run = &HWY_DYNAMIC_DISPATCH(rotate_halves);
#pragma omp parallel for num_threads(threads_for(rows.size()))
  for (std::size_t t = 0; t < tokens; ++t)
    for (std::size_t h = 0; h < heads; ++h) {
      float* const low = &rows[(t * heads + h) * 2 * half];
      run(low, low + half, &cosines[t * half], &sines[t * half], half);
    }
}

}  // namespace kvhive
#endif
