// Query tiles on the CPU: reads their rows from the caller's arrays, goes through their spans,
// merges the states. Included once per instruction set.

#if defined(KVHIVE_ATTENTION_TILE_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef KVHIVE_ATTENTION_TILE_INL
#undef KVHIVE_ATTENTION_TILE_INL
#else
#define KVHIVE_ATTENTION_TILE_INL
#endif

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "hwy/highway.h"
#include "kernels/cpu/attention_chunk-inl.hpp"
#include "kernels/cpu/plan/attention_plan.hpp"
#include "kernels/cpu/plan/attention_state.hpp"
#include "kernels/element.hpp"

HWY_BEFORE_NAMESPACE();
namespace kvhive {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

#if HWY_TARGET != HWY_SCALAR

template <class Element, class D>
void gather_queries_of(D d, const void* q, const TileRows& rows, std::size_t key_size, float factor,
                       float* to) {
  for (std::size_t row = 0; row < rows.count; ++row) {
    const std::byte* from =
        static_cast<const std::byte*>(q) + rows.index(row) * key_size * Element::kBytes;
    for (std::size_t i = 0; i < key_size; i += hn::Lanes(d))
      hn::Store(hn::Mul(Element::load(d, from + i * Element::kBytes), hn::Set(d, factor)), d,
                to + row * key_size + i);
  }
}

/// Copies the tile's query rows, times `factor`, to one array.
template <class D>
void gather_queries(D d, const void* q, Dtype dtype, const TileRows& rows, std::size_t key_size,
                    float factor, float* to) {
  switch (dtype) {
    case Dtype::bf16: return gather_queries_of<Bf16Element>(d, q, rows, key_size, factor, to);
    case Dtype::f16: return gather_queries_of<F16Element>(d, q, rows, key_size, factor, to);
    default: return gather_queries_of<F32Element>(d, q, rows, key_size, factor, to);
  }
}

/// Where a tile's results are written.
struct Results {
  void* out;           ///< [T, H, value_size] of dtype
  float* lse;          ///< [T, H] or null
  const float* sinks;  ///< [H] or null
  Dtype dtype;
  float factor;  ///< of every acc: what the stored values lack
};

template <class D>
void write_results(D d, const Results& results, const TileRows& rows, SoftmaxStates states) {
  constexpr float kNothing = -std::numeric_limits<float>::infinity();
  for (std::size_t row = 0; row < rows.count; ++row) {
    float max = states.sum(row) > 0 ? states.max(row) : kNothing;
    float divisor = states.sum(row);
    float factor = results.factor;
    const float sink = results.sinks ? results.sinks[rows.head(row)] : kNothing;
    if (sink > kNothing) {
      const float new_max = std::max(max, sink);
      const float shrink = divisor > 0 ? std::exp(max - new_max) : 0.0f;
      divisor = divisor * shrink + std::exp(sink - new_max);
      factor *= shrink;
      max = new_max;
    }
    if (results.lse) results.lse[rows.index(row)] = divisor > 0 ? max + std::log(divisor) : max;

    const std::size_t first = rows.index(row) * states.value_size;
    const auto divisors = hn::Set(d, divisor > 0 ? divisor : 1.0f);
    const auto factors = hn::Set(d, factor);
    for (std::size_t i = 0; i < states.value_size; i += hn::Lanes(d)) {
      const auto value = hn::Div(hn::Mul(hn::Load(d, states.acc(row) + i), factors), divisors);
      if (results.dtype == Dtype::f32) {
        hn::StoreU(value, d, static_cast<float*>(results.out) + first + i);
        continue;
      }
      HWY_ALIGN float lanes[hn::MaxLanes(d)];
      hn::Store(value, d, lanes);
      for (std::size_t j = 0; j < hn::Lanes(d); ++j)
        store_element(results.out, first + i + j, lanes[j], results.dtype);
    }
  }
}

inline void clear(SoftmaxStates states, std::size_t rows) {
  for (std::size_t row = 0; row < rows; ++row) {
    std::fill_n(states.acc(row), states.value_size, 0.0f);
    states.max(row) = -std::numeric_limits<float>::infinity();
    states.sum(row) = 0.0f;
  }
}

/// Merges `next` into `into`, whose positions come before those of `next`.
template <class D>
void merge_row(D d, SoftmaxStates into, SoftmaxStates next, std::size_t row) {
  if (next.sum(row) == 0.0f) return;
  if (into.sum(row) == 0.0f) {
    std::copy_n(next.acc(row), SoftmaxStates::stride(next.value_size), into.acc(row));
    return;
  }
  const float max = std::max(into.max(row), next.max(row));
  const float into_factor = std::exp(into.max(row) - max);
  const float next_factor = std::exp(next.max(row) - max);
  into.max(row) = max;
  into.sum(row) = into.sum(row) * into_factor + next.sum(row) * next_factor;
  scale_in_place(d, into.acc(row), into.value_size, into_factor);
  for (std::size_t i = 0; i < into.value_size; i += hn::Lanes(d)) {
    const auto sum = hn::MulAdd(hn::Load(d, next.acc(row) + i), hn::Set(d, next_factor),
                                hn::Load(d, into.acc(row) + i));
    hn::Store(sum, d, into.acc(row) + i);
  }
}

/// Runs attend_chunk(first position, states) over the chunks of an item's spans. The states of a
/// split tile are written to `stored`; the state of an unsplit one ends in scratch.total.
template <class D, class AttendChunk>
void attend_item(D d, const QueryTile& tile, const TileSpans& item, std::size_t rows,
                 AttentionScratch& scratch, SoftmaxStates stored, const AttendChunk& attend_chunk) {
  clear(scratch.total, rows);
  for (std::int32_t span = item.first_span; span < item.end_span; ++span) {
    const SoftmaxStates states =
        tile.is_split() ? stored.from(tile.first_state +
                                      static_cast<std::int64_t>(rows) * (span - tile.first_span()))
                        : scratch.span;
    clear(states, rows);
    const std::int32_t first =
        std::max(span * kSpanTokens, tile.visible.begin / kChunkTokens * kChunkTokens);
    const std::int32_t end = std::min((span + 1) * kSpanTokens, tile.visible.end);
    for (std::int32_t chunk = first; chunk < end; chunk += kChunkTokens)
      attend_chunk(chunk, states);
    if (tile.is_split()) continue;
    for (std::size_t row = 0; row < rows; ++row) merge_row(d, scratch.total, states, row);
  }
}

/// Merges the states of a split tile into scratch.total.
template <class D>
void merge_tile(D d, const QueryTile& tile, std::size_t rows, AttentionScratch& scratch,
                SoftmaxStates stored) {
  clear(scratch.total, rows);
  SoftmaxStates states = stored.from(tile.first_state);
  for (std::int32_t span = tile.first_span(); span < tile.end_span(); ++span) {
    for (std::size_t row = 0; row < rows; ++row) merge_row(d, scratch.total, states, row);
    states = states.from(static_cast<std::int64_t>(rows));
  }
}

#endif  // HWY_TARGET != HWY_SCALAR

}  // namespace HWY_NAMESPACE
}  // namespace kvhive
HWY_AFTER_NAMESPACE();

#endif  // KVHIVE_ATTENTION_TILE_INL
