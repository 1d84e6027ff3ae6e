// Attention of some query rows over one chunk of KV: scores, online softmax, weighted sum of
// values. Included once per instruction set. The arithmetic on one query row is the same whichever
// other rows are in the tile; that and the fixed borders described in attention_plan.hpp make
// results bit-equal. Compiled with -ffp-contract=off: otherwise the compiler could fuse
// multiplications and additions differently in different instantiations.

#if defined(KVHIVE_ATTENTION_CHUNK_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef KVHIVE_ATTENTION_CHUNK_INL
#undef KVHIVE_ATTENTION_CHUNK_INL
#else
#define KVHIVE_ATTENTION_CHUNK_INL
#endif

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "hwy/cache_control.h"
#include "hwy/contrib/math/math-inl.h"
#include "hwy/highway.h"
#include "kernels/cpu/plan/attention_plan.hpp"
#include "kernels/cpu/plan/attention_state.hpp"
#include "kernels/cpu/instructions/element-inl.hpp"
#include "kernels/cpu/instructions/fold-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace kvhive {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

#if HWY_TARGET != HWY_SCALAR

constexpr std::size_t kRowsAtOnce = 4;
constexpr std::int32_t kKeysAtOnce = 4;
// A register tile has rows x 4 accumulators, one for each of four keys, or of four vectors of a
// value. Where there are 16 registers, 4 rows take two keys or vectors at a time: their elements
// are converted once for all rows, and 8 accumulators hide the latency of a multiplication.
template <std::size_t kRows>
constexpr std::size_t kColumnsAtOnce = HWY_TARGET <= HWY_AVX3 || kRows <= 2 ? 4 : 2;
// This many rows of V stay in L1 while all query rows use them.
constexpr std::int32_t kValuesAtOnce = 32;

template <class Element>
HWY_INLINE void prefetch_row(const std::byte* row, std::size_t elements) {
  for (std::size_t line = 0; line < elements * Element::kBytes; line += 64)
    hwy::Prefetch(row + line);
}

/// One vector of four: element i is the sum of all lanes of a_i.
template <class D, class V>
HWY_INLINE auto sums_of_lanes(D d, V a0, V a1, V a2, V a3) {
  const V a02 = hn::Add(hn::InterleaveLower(d, a0, a2), hn::InterleaveUpper(d, a0, a2));
  const V a13 = hn::Add(hn::InterleaveLower(d, a1, a3), hn::InterleaveUpper(d, a1, a3));
  const V a0123 = hn::Add(hn::InterleaveLower(d, a02, a13), hn::InterleaveUpper(d, a02, a13));
  return fold_to_four(d, a0123);
}

/// sums[row][j] += q[row] * k[j], lane by lane.
template <std::size_t kRows, std::size_t kKeys, class D, class V>
HWY_INLINE void add_products(D d, const float* HWY_RESTRICT q, std::size_t q_stride,
                             const V (&k)[kKeys], V (&sums)[kRows][kKeys]) {
  HWY_UNROLL(4)
  for (std::size_t r = 0; r < kRows; ++r) {
    const auto query = hn::Load(d, q + r * q_stride);
    HWY_UNROLL(4)
    for (std::size_t j = 0; j < kKeys; ++j) sums[r][j] = hn::MulAdd(query, k[j], sums[r][j]);
  }
}

/// sums[row][first + j] = q[row] * k[token + first + j], lane by lane, for kKeys keys.
template <class Element, std::size_t kRows, std::size_t kKeys, class D, class V>
HWY_INLINE void multiply_keys(D d, const float* HWY_RESTRICT q, const ChunkRows& chunk,
                              std::int32_t token, std::size_t first,
                              V (&sums)[kRows][kKeysAtOnce]) {
  const std::byte* keys[kKeys];
  for (std::size_t j = 0; j < kKeys; ++j)
    keys[j] = chunk.k + chunk.offsets[static_cast<std::size_t>(token) + first + j];

  V some[kRows][kKeys];
  HWY_UNROLL(4)
  for (std::size_t r = 0; r < kRows; ++r) HWY_UNROLL(4)
  for (std::size_t j = 0; j < kKeys; ++j) some[r][j] = hn::Zero(d);

  const std::size_t lanes = hn::Lanes(d);
  V k[kKeys], next[kKeys];
  std::size_t i = 0;
  if constexpr (Element::kHasPairs)
    for (; i + 2 * lanes <= chunk.key_size; i += 2 * lanes) {
      HWY_UNROLL(4)
      for (std::size_t j = 0; j < kKeys; ++j)
        Element::load_pair(d, keys[j] + i * Element::kBytes, k[j], next[j]);
      add_products<kRows, kKeys>(d, q + i, chunk.key_size, k, some);
      add_products<kRows, kKeys>(d, q + i + lanes, chunk.key_size, next, some);
    }
  for (; i < chunk.key_size; i += lanes) {
    HWY_UNROLL(4)
    for (std::size_t j = 0; j < kKeys; ++j) k[j] = Element::load(d, keys[j] + i * Element::kBytes);
    add_products<kRows, kKeys>(d, q + i, chunk.key_size, k, some);
  }
  HWY_UNROLL(4)
  for (std::size_t r = 0; r < kRows; ++r) HWY_UNROLL(4)
  for (std::size_t j = 0; j < kKeys; ++j) sums[r][first + j] = some[r][j];
}

/// scores[row][0..3] = q[row] . k[token 0..3] for kRows rows.
template <class Element, std::size_t kRows, class D>
HWY_INLINE void score_tile(D d, const float* HWY_RESTRICT q, const ChunkRows& chunk,
                           std::int32_t token, float* HWY_RESTRICT scores) {
  constexpr std::size_t kKeys = kColumnsAtOnce<kRows>;
  hn::Vec<D> sums[kRows][kKeysAtOnce];
  for (std::size_t first = 0; first < kKeysAtOnce; first += kKeys)
    multiply_keys<Element, kRows, kKeys>(d, q, chunk, token, first, sums);
  const hn::CappedTag<float, 4> d4;
  HWY_UNROLL(4)
  for (std::size_t r = 0; r < kRows; ++r)
    hn::StoreU(sums_of_lanes(d, sums[r][0], sums[r][1], sums[r][2], sums[r][3]), d4,
               scores + r * kChunkTokens);
}

/// Must be called whenever scratch.ranges have changed.
inline void unite_ranges(std::size_t rows, AttentionScratch& scratch) {
  for (std::size_t r = 0; r < rows; r += kRowsAtOnce) {
    KvRange seen{kChunkTokens, 0};
    for (std::size_t i = r; i < std::min(r + kRowsAtOnce, rows); ++i) {
      const KvRange range = scratch.ranges[i];
      if (range.begin < range.end)
        seen = {std::min(seen.begin, range.begin), std::max(seen.end, range.end)};
    }
    scratch.unions[r / kRowsAtOnce] = seen;
  }
}

/// Computes all scores of `piece` that some row sees (scratch.ranges). Some scores of tokens that a
/// row does not see are computed along; softmax_row masks them.
template <class Element, class D>
void score_chunk(D d, const ChunkRows& chunk, KvRange piece, std::size_t rows,
                 AttentionScratch& scratch) {
  const std::int32_t first = piece.begin / kKeysAtOnce * kKeysAtOnce;
  for (std::int32_t token = first; token < piece.end; token += kKeysAtOnce) {
    for (std::int32_t j = 0; j < kKeysAtOnce; ++j) {
      const std::int32_t ahead = token + j + AttentionScratch::kPrefetchTokens;
      prefetch_row<Element>(ahead < piece.end ? chunk.k + chunk.offsets[ahead]
                                              : chunk.v + chunk.offsets[ahead - piece.end + first],
                            chunk.key_size);
    }
    for (std::size_t r = 0; r < rows; r += kRowsAtOnce) {
      const KvRange seen = scratch.unions[r / kRowsAtOnce];
      if (token >= seen.end || token + kKeysAtOnce <= seen.begin) continue;
      const float* q = scratch.q + r * chunk.key_size;
      float* scores = scratch.scores + r * kChunkTokens + token;
      switch (std::min(kRowsAtOnce, rows - r)) {
        case 4: score_tile<Element, 4>(d, q, chunk, token, scores); break;
        case 3: score_tile<Element, 3>(d, q, chunk, token, scores); break;
        case 2: score_tile<Element, 2>(d, q, chunk, token, scores); break;
        default: score_tile<Element, 1>(d, q, chunk, token, scores); break;
      }
    }
  }
}

template <class D>
HWY_INLINE void scale_in_place(D d, float* HWY_RESTRICT values, std::size_t count, float factor) {
  const auto factors = hn::Set(d, factor);
  for (std::size_t i = 0; i < count; i += hn::Lanes(d))
    hn::Store(hn::Mul(hn::Load(d, values + i), factors), d, values + i);
}

/// A weight below e to this is 0: it would not be seen, and denormals, which it would lead to, take
/// some CPUs a hundred times as long.
constexpr float kLeastLog = -60;

template <class D, class V>
HWY_INLINE V weight_of(D d, V log) {
  const V least = hn::Set(d, kLeastLog);
  return hn::IfThenElseZero(hn::Ge(log, least), hn::Exp(d, hn::Max(log, least)));
}

/// Turns the scores a row sees into weights relative to the state's new max, and rescales the state
/// to that max.
template <class D>
void softmax_row(D d, KvRange range, float* HWY_RESTRICT scores, SoftmaxStates states,
                 std::size_t row) {
  const auto lanes = static_cast<std::int32_t>(hn::Lanes(d));
  const KvRange whole{range.begin / lanes * lanes, (range.end + lanes - 1) / lanes * lanes};
  // Masks by storing -infinity, not by arithmetic: the score of a token that is not seen may be
  // NaN.
  std::fill(scores + whole.begin, scores + range.begin, -std::numeric_limits<float>::infinity());
  std::fill(scores + range.end, scores + whole.end, -std::numeric_limits<float>::infinity());

  auto max = hn::Set(d, states.max(row));
  for (std::int32_t t = whole.begin; t < whole.end; t += lanes)
    max = hn::Max(max, hn::Load(d, scores + t));
  max = hn::MaxOfLanes(d, max);

  auto sum = hn::Zero(d);
  for (std::int32_t t = whole.begin; t < whole.end; t += lanes) {
    const auto probability = weight_of(d, hn::Sub(hn::Load(d, scores + t), max));
    hn::Store(probability, d, scores + t);
    sum = hn::Add(sum, probability);
  }
  const float new_max = hn::GetLane(max);
  const float log_shrink = states.max(row) - new_max;
  const float shrink = log_shrink < kLeastLog ? 0.0f : std::exp(log_shrink);
  states.max(row) = new_max;
  states.sum(row) = states.sum(row) * shrink + hn::GetLane(hn::SumOfLanes(d, sum));
  scale_in_place(d, states.acc(row), states.value_size, shrink);
}

/// Changes to a score besides the scale. An option that is off costs nothing.
struct ScoreOptions {
  const float* k_scales = nullptr;  ///< [kChunkTokens]; null: none
  float soft_cap = 0;
};

/// Applies the options to the scores of the tokens of `range`.
template <class D>
void finish_scores(D d, const ScoreOptions& options, KvRange range, float* HWY_RESTRICT scores) {
  const auto lanes = static_cast<std::int32_t>(hn::Lanes(d));
  const std::int32_t first = range.begin / lanes * lanes;
  const auto each = [&](auto&& change) {
    for (std::int32_t t = first; t < range.end; t += lanes)
      hn::Store(change(hn::Load(d, scores + t), t), d, scores + t);
  };
  if (options.k_scales)
    each([&](auto score, std::int32_t t) {
      return hn::Mul(score, hn::Load(d, options.k_scales + t));
    });
  if (options.soft_cap > 0)
    each([&](auto score, std::int32_t) {
      const auto cap = hn::Set(d, options.soft_cap);
      return hn::Mul(cap, hn::Tanh(d, hn::Div(score, cap)));
    });
}

/// probabilities[t] *= factors[t] for the tokens of `range`.
template <class D>
void scale_tokens(D d, const float* HWY_RESTRICT factors, KvRange range,
                  float* HWY_RESTRICT probabilities) {
  const auto lanes = static_cast<std::int32_t>(hn::Lanes(d));
  for (std::int32_t t = range.begin / lanes * lanes; t < range.end; t += lanes)
    hn::Store(hn::Mul(hn::Load(d, probabilities + t), hn::Load(d, factors + t)), d,
              probabilities + t);
}

/// acc[row] += probability[row][t] * v[t] for kRows rows and kVectors vectors from `dim` on, over
/// tokens that all these rows see.
template <class Element, std::size_t kRows, std::size_t kVectors, class D>
HWY_INLINE void accumulate_tile(D d, const ChunkRows& chunk, KvRange tokens, std::size_t dim,
                                const float* HWY_RESTRICT probabilities, float* HWY_RESTRICT acc,
                                std::size_t acc_stride) {
  hn::Vec<D> sums[kRows][kVectors];
  HWY_UNROLL(4)
  for (std::size_t r = 0; r < kRows; ++r) HWY_UNROLL(4)
  for (std::size_t i = 0; i < kVectors; ++i)
    sums[r][i] = hn::Load(d, acc + r * acc_stride + dim + i * hn::Lanes(d));

  for (std::int32_t t = tokens.begin; t < tokens.end; ++t) {
    const std::byte* value = chunk.v + chunk.offsets[t] + dim * Element::kBytes;
    hn::Vec<D> values[kVectors];
    if constexpr (Element::kHasPairs && kVectors % 2 == 0) {
      HWY_UNROLL(2)
      for (std::size_t i = 0; i < kVectors; i += 2)
        Element::load_pair(d, value + i * hn::Lanes(d) * Element::kBytes, values[i], values[i + 1]);
    } else {
      HWY_UNROLL(4)
      for (std::size_t i = 0; i < kVectors; ++i)
        values[i] = Element::load(d, value + i * hn::Lanes(d) * Element::kBytes);
    }
    HWY_UNROLL(4)
    for (std::size_t r = 0; r < kRows; ++r) {
      const auto probability = hn::Set(d, probabilities[r * kChunkTokens + t]);
      HWY_UNROLL(4)
      for (std::size_t i = 0; i < kVectors; ++i)
        sums[r][i] = hn::MulAdd(probability, values[i], sums[r][i]);
    }
  }
  HWY_UNROLL(4)
  for (std::size_t r = 0; r < kRows; ++r) HWY_UNROLL(4)
  for (std::size_t i = 0; i < kVectors; ++i)
    hn::Store(sums[r][i], d, acc + r * acc_stride + dim + i * hn::Lanes(d));
}

template <class Element, std::size_t kRows, class D>
HWY_INLINE void accumulate_rows(D d, const ChunkRows& chunk, KvRange tokens, std::size_t first_row,
                                const AttentionScratch& scratch, SoftmaxStates states) {
  if (tokens.begin >= tokens.end) return;
  const float* probabilities = scratch.scores + first_row * kChunkTokens;
  float* acc = states.acc(first_row);
  const std::size_t stride = SoftmaxStates::stride(states.value_size);
  constexpr std::size_t kVectors = kColumnsAtOnce<kRows>;
  std::size_t dim = 0;
  for (; dim + kVectors * hn::Lanes(d) <= chunk.value_size; dim += kVectors * hn::Lanes(d))
    accumulate_tile<Element, kRows, kVectors>(d, chunk, tokens, dim, probabilities, acc, stride);
  for (; dim < chunk.value_size; dim += hn::Lanes(d))
    accumulate_tile<Element, kRows, 1>(d, chunk, tokens, dim, probabilities, acc, stride);
}

/// Adds V of `tokens` to kRows rows. Each row takes exactly the tokens it sees, in order: tokens
/// that only some of the rows see are added row by row, before and after the common ones. (A token
/// that a row does not see must not be multiplied by a weight of 0: its V may be NaN.)
template <class Element, std::size_t kRows, class D>
HWY_INLINE void accumulate_group(D d, const ChunkRows& chunk, KvRange tokens, std::size_t first_row,
                                 const AttentionScratch& scratch, SoftmaxStates states) {
  KvRange common = tokens;
  for (std::size_t r = 0; r < kRows; ++r)
    common = intersection(common, scratch.ranges[first_row + r]);
  if (common.begin >= common.end) common = {tokens.end, tokens.end};

  for (std::size_t r = first_row; r < first_row + kRows; ++r)
    accumulate_rows<Element, 1>(d, chunk,
                                intersection(scratch.ranges[r], {tokens.begin, common.begin}), r,
                                scratch, states);
  accumulate_rows<Element, kRows>(d, chunk, common, first_row, scratch, states);
  for (std::size_t r = first_row; r < first_row + kRows; ++r)
    accumulate_rows<Element, 1>(d, chunk, intersection(scratch.ranges[r], {common.end, tokens.end}),
                                r, scratch, states);
}

/// Adds the values of `piece` to the states of the rows that see them (scratch.ranges).
template <class Element, class D>
void accumulate_chunk(D d, const ChunkRows& chunk, KvRange piece, std::size_t rows,
                      const AttentionScratch& scratch, SoftmaxStates states) {
  for (std::int32_t t = piece.begin; t < piece.end; t += kValuesAtOnce) {
    const KvRange tokens{t, std::min(t + kValuesAtOnce, piece.end)};
    for (std::int32_t j = tokens.begin; j < tokens.end; ++j) {
      const std::int32_t ahead = j + AttentionScratch::kPrefetchTokens;
      if (ahead < piece.end)
        prefetch_row<Element>(chunk.v + chunk.offsets[ahead], chunk.value_size);
      else
        prefetch_row<Element>(chunk.k + chunk.offsets[ahead], chunk.key_size);
    }
    for (std::size_t r = 0; r < rows; r += kRowsAtOnce) switch (std::min(kRowsAtOnce, rows - r)) {
        case 4: accumulate_group<Element, 4>(d, chunk, tokens, r, scratch, states); break;
        case 3: accumulate_group<Element, 3>(d, chunk, tokens, r, scratch, states); break;
        case 2: accumulate_group<Element, 2>(d, chunk, tokens, r, scratch, states); break;
        default: accumulate_group<Element, 1>(d, chunk, tokens, r, scratch, states); break;
      }
  }
}

#endif  // HWY_TARGET != HWY_SCALAR

}  // namespace HWY_NAMESPACE
}  // namespace kvhive
HWY_AFTER_NAMESPACE();

#endif  // KVHIVE_ATTENTION_CHUNK_INL
