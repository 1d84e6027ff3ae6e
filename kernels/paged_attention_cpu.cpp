// Included once per instruction set by foreach_target.h; read from `attend_spans` at the end of the
// SIMD part. All arithmetic on one query row is the same whatever shares the tile with it: that,
// and the fixed borders described in attention_plan.hpp, is what makes results bit-equal. Compiled
// with -ffp-contract=off, lest the compiler fuse differently in different instantiations.

#include "kernels/paged_attention.hpp"

#include <omp.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "config/check.hpp"
#include "kernels/attention_plan.hpp"
#include "kernels/attention_state.hpp"

// Too old to be worth its compile time.
#define HWY_DISABLED_TARGETS HWY_SSSE3
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/paged_attention_cpu.cpp"
#include "hwy/foreach_target.h"
// foreach_target.h comes first
#include "hwy/cache_control.h"
#include "hwy/contrib/math/math-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace kvhive {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

#if HWY_TARGET == HWY_SCALAR

// Highway's scalar target lacks the operations below. Such a CPU gets the reference.
bool has_vectors() { return false; }
void attend_spans(const PagedAttentionArgs&, const QueryTile&, const TileSpans&, AttentionScratch&,
                  SoftmaxStates) {}
void merge_spans(const PagedAttentionArgs&, const QueryTile&, AttentionScratch&, SoftmaxStates) {}

#else

bool has_vectors() { return true; }

// Accumulators of a register tile are rows x 4; they must fit into 32 or 16 registers.
constexpr std::size_t kRowsAtOnce = HWY_TARGET <= HWY_AVX3 ? 4 : 2;
constexpr std::int32_t kKeysAtOnce = 4;
// V rows that stay in L1 while all query rows use them.
constexpr std::int32_t kValuesAtOnce = 16;

struct F32Element {
  static constexpr std::size_t kBytes = 4;
  template <class D>
  static HWY_INLINE hn::Vec<D> load(D d, const std::byte* from) {
    return hn::LoadU(d, reinterpret_cast<const float*>(from));
  }
};

struct Bf16Element {
  static constexpr std::size_t kBytes = 2;
  template <class D>
  static HWY_INLINE hn::Vec<D> load(D d, const std::byte* from) {
    const hn::Rebind<std::uint16_t, D> du16;
    const hn::Rebind<std::uint32_t, D> du32;
    const auto bits = hn::LoadU(du16, reinterpret_cast<const std::uint16_t*>(from));
    return hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(du32, bits)));
  }
};

struct F16Element {
  static constexpr std::size_t kBytes = 2;
  template <class D>
  static HWY_INLINE hn::Vec<D> load(D d, const std::byte* from) {
    const hn::Rebind<hwy::float16_t, D> df16;
    return hn::PromoteTo(d, hn::LoadU(df16, reinterpret_cast<const hwy::float16_t*>(from)));
  }
};

/// One chunk of the KV of one sequence and head. Token t's rows are at k + offsets[t] and
/// v + offsets[t]; offsets go on for kPrefetchTokens into the next chunk.
struct Chunk {
  const std::byte* k;
  const std::byte* v;
  const std::int64_t* offsets;
  KvRange visible;  ///< to any row of the tile, counted from the chunk's start
  std::size_t head_size;
};

template <class Element>
HWY_INLINE void prefetch_row(const std::byte* row, std::size_t head_size) {
  for (std::size_t line = 0; line < head_size * Element::kBytes; line += 64)
    hwy::Prefetch(row + line);
}

template <class D, class V>
HWY_INLINE auto fold_to_four(D d, V v) {
  if constexpr (hn::MaxLanes(d) <= 4) {
    return v;
  } else {
    const hn::Half<D> half;
    return fold_to_four(half, hn::Add(hn::LowerHalf(half, v), hn::UpperHalf(half, v)));
  }
}

/// The sums of the lanes of four vectors, as one vector of four.
template <class D, class V>
HWY_INLINE auto sums_of_lanes(D d, V a0, V a1, V a2, V a3) {
  const V a02 = hn::Add(hn::InterleaveLower(d, a0, a2), hn::InterleaveUpper(d, a0, a2));
  const V a13 = hn::Add(hn::InterleaveLower(d, a1, a3), hn::InterleaveUpper(d, a1, a3));
  const V a0123 = hn::Add(hn::InterleaveLower(d, a02, a13), hn::InterleaveUpper(d, a02, a13));
  return fold_to_four(d, a0123);
}

/// scores[row][0..3] = q[row] . k[token 0..3] for kRows rows.
template <class Element, std::size_t kRows, class D>
HWY_INLINE void score_tile(D d, const float* HWY_RESTRICT q, const Chunk& chunk, std::int32_t token,
                           float* HWY_RESTRICT scores) {
  const std::byte* keys[kKeysAtOnce];
  for (std::int32_t j = 0; j < kKeysAtOnce; ++j) keys[j] = chunk.k + chunk.offsets[token + j];

  hn::Vec<D> sums[kRows][kKeysAtOnce];
  HWY_UNROLL(4)
  for (std::size_t r = 0; r < kRows; ++r) HWY_UNROLL(4)
  for (std::int32_t j = 0; j < kKeysAtOnce; ++j) sums[r][j] = hn::Zero(d);

  for (std::size_t i = 0; i < chunk.head_size; i += hn::Lanes(d)) {
    const auto k0 = Element::load(d, keys[0] + i * Element::kBytes);
    const auto k1 = Element::load(d, keys[1] + i * Element::kBytes);
    const auto k2 = Element::load(d, keys[2] + i * Element::kBytes);
    const auto k3 = Element::load(d, keys[3] + i * Element::kBytes);
    HWY_UNROLL(4)
    for (std::size_t r = 0; r < kRows; ++r) {
      const auto query = hn::Load(d, q + r * chunk.head_size + i);
      sums[r][0] = hn::MulAdd(query, k0, sums[r][0]);
      sums[r][1] = hn::MulAdd(query, k1, sums[r][1]);
      sums[r][2] = hn::MulAdd(query, k2, sums[r][2]);
      sums[r][3] = hn::MulAdd(query, k3, sums[r][3]);
    }
  }
  const hn::CappedTag<float, 4> d4;
  HWY_UNROLL(4)
  for (std::size_t r = 0; r < kRows; ++r)
    hn::StoreU(sums_of_lanes(d, sums[r][0], sums[r][1], sums[r][2], sums[r][3]), d4,
               scores + r * kChunkTokens);
}

/// All scores of a chunk that some row may see; what else gets a score is masked by softmax_row.
template <class Element, class D>
void score_chunk(D d, const Chunk& chunk, std::size_t rows, AttentionScratch& scratch) {
  const std::int32_t first = chunk.visible.begin / kKeysAtOnce * kKeysAtOnce;
  for (std::int32_t token = first; token < chunk.visible.end; token += kKeysAtOnce) {
    for (std::int32_t j = 0; j < kKeysAtOnce; ++j) {
      const std::int32_t ahead = token + j + AttentionScratch::kPrefetchTokens;
      prefetch_row<Element>(ahead < chunk.visible.end
                                ? chunk.k + chunk.offsets[ahead]
                                : chunk.v + chunk.offsets[ahead - chunk.visible.end + first],
                            chunk.head_size);
    }
    for (std::size_t r = 0; r < rows; r += kRowsAtOnce) {
      const std::size_t end = std::min(r + kRowsAtOnce, rows);
      // Later rows see later tokens.
      if (token >= scratch.ranges[end - 1].end) continue;
      if (token + kKeysAtOnce <= scratch.ranges[r].begin) continue;
      const float* q = scratch.q + r * chunk.head_size;
      float* scores = scratch.scores + r * kChunkTokens + token;
      switch (end - r) {
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

/// Turns the visible scores of a row into probabilities relative to the state's new max, and
/// rescales the state to it.
template <class D>
void softmax_row(D d, KvRange range, float* HWY_RESTRICT scores, SoftmaxStates states,
                 std::size_t row) {
  const auto lanes = static_cast<std::int32_t>(hn::Lanes(d));
  const KvRange whole{range.begin / lanes * lanes, (range.end + lanes - 1) / lanes * lanes};
  // Selection, not arithmetic: a masked score may be NaN.
  std::fill(scores + whole.begin, scores + range.begin, -std::numeric_limits<float>::infinity());
  std::fill(scores + range.end, scores + whole.end, -std::numeric_limits<float>::infinity());

  auto max = hn::Set(d, states.max(row));
  for (std::int32_t t = whole.begin; t < whole.end; t += lanes)
    max = hn::Max(max, hn::Load(d, scores + t));
  max = hn::MaxOfLanes(d, max);

  auto sum = hn::Zero(d);
  for (std::int32_t t = whole.begin; t < whole.end; t += lanes) {
    const auto probability = hn::Exp(d, hn::Sub(hn::Load(d, scores + t), max));
    hn::Store(probability, d, scores + t);
    sum = hn::Add(sum, probability);
  }
  const float new_max = hn::GetLane(max);
  const float shrink = std::exp(states.max(row) - new_max);
  states.max(row) = new_max;
  states.sum(row) = states.sum(row) * shrink + hn::GetLane(hn::SumOfLanes(d, sum));
  scale_in_place(d, states.acc(row), states.head_size, shrink);
}

/// acc[row] += probability[row][t] * v[t] for kRows rows and kVectors vectors from `dim` on, over
/// tokens that all these rows see.
template <class Element, std::size_t kRows, std::size_t kVectors, class D>
HWY_INLINE void accumulate_tile(D d, const Chunk& chunk, KvRange tokens, std::size_t dim,
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
    HWY_UNROLL(4)
    for (std::size_t i = 0; i < kVectors; ++i)
      values[i] = Element::load(d, value + i * hn::Lanes(d) * Element::kBytes);
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
HWY_INLINE void accumulate_rows(D d, const Chunk& chunk, KvRange tokens, std::size_t first_row,
                                const AttentionScratch& scratch, SoftmaxStates states) {
  if (tokens.begin >= tokens.end) return;
  const float* probabilities = scratch.scores + first_row * kChunkTokens;
  float* acc = states.acc(first_row);
  const std::size_t stride = SoftmaxStates::stride(states.head_size);
  std::size_t dim = 0;
  for (; dim + 4 * hn::Lanes(d) <= chunk.head_size; dim += 4 * hn::Lanes(d))
    accumulate_tile<Element, kRows, 4>(d, chunk, tokens, dim, probabilities, acc, stride);
  for (; dim < chunk.head_size; dim += hn::Lanes(d))
    accumulate_tile<Element, kRows, 1>(d, chunk, tokens, dim, probabilities, acc, stride);
}

/// kRows rows over `tokens`. Each row sees exactly its own tokens, in order: those that only some
/// rows see are done row by row, before and after the common ones. (A masked token must not even be
/// multiplied by a probability of zero: its V may be NaN.)
template <class Element, std::size_t kRows, class D>
HWY_INLINE void accumulate_group(D d, const Chunk& chunk, KvRange tokens, std::size_t first_row,
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

template <class Element, class D>
void accumulate_chunk(D d, const Chunk& chunk, std::size_t rows, const AttentionScratch& scratch,
                      SoftmaxStates states) {
  for (std::int32_t t = chunk.visible.begin; t < chunk.visible.end; t += kValuesAtOnce) {
    const KvRange tokens{t, std::min(t + kValuesAtOnce, chunk.visible.end)};
    for (std::int32_t j = tokens.begin; j < tokens.end; ++j) {
      const std::int32_t ahead = j + AttentionScratch::kPrefetchTokens;
      const std::byte* plane = ahead < chunk.visible.end ? chunk.v : chunk.k;
      prefetch_row<Element>(plane + chunk.offsets[ahead], chunk.head_size);
    }
    for (std::size_t r = 0; r < rows; r += kRowsAtOnce) switch (std::min(kRowsAtOnce, rows - r)) {
        case 4: accumulate_group<Element, 4>(d, chunk, tokens, r, scratch, states); break;
        case 3: accumulate_group<Element, 3>(d, chunk, tokens, r, scratch, states); break;
        case 2: accumulate_group<Element, 2>(d, chunk, tokens, r, scratch, states); break;
        default: accumulate_group<Element, 1>(d, chunk, tokens, r, scratch, states); break;
      }
  }
}

/// Makes `into` the state of its positions and then those of `next`.
template <class D>
void merge_row(D d, SoftmaxStates into, SoftmaxStates next, std::size_t row) {
  if (next.sum(row) == 0.0f) return;
  if (into.sum(row) == 0.0f) {
    std::copy_n(next.acc(row), SoftmaxStates::stride(next.head_size), into.acc(row));
    return;
  }
  const float max = std::max(into.max(row), next.max(row));
  const float into_factor = std::exp(into.max(row) - max);
  const float next_factor = std::exp(next.max(row) - max);
  into.max(row) = max;
  into.sum(row) = into.sum(row) * into_factor + next.sum(row) * next_factor;
  scale_in_place(d, into.acc(row), into.head_size, into_factor);
  for (std::size_t i = 0; i < into.head_size; i += hn::Lanes(d)) {
    const auto sum = hn::MulAdd(hn::Load(d, next.acc(row) + i), hn::Set(d, next_factor),
                                hn::Load(d, into.acc(row) + i));
    hn::Store(sum, d, into.acc(row) + i);
  }
}

/// The tile's queries and results in the caller's [T, H, D] arrays.
struct TileRows {
  TileRows(const PagedAttentionArgs& args, const QueryTile& tile)
      : group(static_cast<std::size_t>(args.H / args.kv.G)),
        rows(static_cast<std::size_t>(tile.queries) * group),
        token_stride(static_cast<std::size_t>(args.H) * args.kv.D),
        first(tile.first_query * token_stride + tile.g * group * args.kv.D) {}

  std::size_t offset(std::size_t row, std::size_t head_size) const {
    return first + row / group * token_stride + row % group * head_size;
  }

  std::size_t group;
  std::size_t rows;
  std::size_t token_stride;
  std::size_t first;
};

template <class D>
void gather_queries(D d, const PagedAttentionArgs& args, const TileRows& tile_rows, float* q) {
  const auto head_size = static_cast<std::size_t>(args.kv.D);
  for (std::size_t row = 0; row < tile_rows.rows; ++row) {
    const float* from = static_cast<const float*>(args.q) + tile_rows.offset(row, head_size);
    for (std::size_t i = 0; i < head_size; i += hn::Lanes(d))
      hn::Store(hn::Mul(hn::LoadU(d, from + i), hn::Set(d, args.scale)), d,
                q + row * head_size + i);
  }
}

template <class D>
void write_results(D d, const PagedAttentionArgs& args, const TileRows& tile_rows,
                   SoftmaxStates states) {
  for (std::size_t row = 0; row < tile_rows.rows; ++row) {
    float* to = static_cast<float*>(args.out) + tile_rows.offset(row, states.head_size);
    const auto sum = hn::Set(d, states.sum(row));
    for (std::size_t i = 0; i < states.head_size; i += hn::Lanes(d))
      hn::StoreU(hn::Div(hn::Load(d, states.acc(row) + i), sum), d, to + i);
  }
}

void clear(SoftmaxStates states, std::size_t rows) {
  for (std::size_t row = 0; row < rows; ++row) {
    std::fill_n(states.acc(row), states.head_size, 0.0f);
    states.max(row) = -std::numeric_limits<float>::infinity();
    states.sum(row) = 0.0f;
  }
}

/// Where the rows of the tokens from `chunk_begin` on are. Tokens outside `visible` get the place
/// of the nearest one inside: only block table entries that hold visible tokens are ever used.
void find_rows(const PagedAttentionArgs& args, const QueryTile& tile, std::int32_t chunk_begin,
               std::vector<std::int64_t>& offsets) {
  const PagedKv& kv = args.kv;
  const std::uint32_t* table = args.block_table + std::int64_t{tile.b} * args.M;
  const auto tokens = static_cast<std::int32_t>(offsets.size());
  const std::int32_t begin = std::max(0, tile.visible.begin - chunk_begin);
  const std::int32_t end = std::min(tokens, tile.visible.end - chunk_begin);
  std::int32_t block = (chunk_begin + begin) / kv.S;
  std::int32_t slot = (chunk_begin + begin) % kv.S;
  for (std::int32_t t = begin; t < end; ++block, slot = 0) {
    const std::int64_t block_offset =
        std::int64_t{table[block]} * kv.block_stride + tile.g * kv.head_stride;
    // The first touch of a page is the slow one (address translation, opening the DRAM row): do it
    // for the whole chunk now. Worth a fifth to a third of decode's speed; a chunk earlier is no
    // good.
    hwy::Prefetch(kv.k + block_offset);
    hwy::Prefetch(kv.v + block_offset);
    for (; slot < kv.S && t < end; ++slot, ++t) offsets[t] = block_offset + slot * kv.token_stride;
  }
  std::fill(offsets.begin(), offsets.begin() + begin, offsets[begin]);
  std::fill(offsets.begin() + end, offsets.end(), offsets[end - 1]);
}

/// Continues the states of the tile's rows over one chunk.
template <class Element, class D>
void attend_chunk(D d, const PagedAttentionArgs& args, const QueryTile& tile, std::size_t rows,
                  std::int32_t chunk_begin, AttentionScratch& scratch, SoftmaxStates states) {
  find_rows(args, tile, chunk_begin, scratch.offsets);
  const std::size_t group = rows / static_cast<std::size_t>(tile.queries);
  for (std::size_t row = 0; row < rows; ++row) {
    const auto position = tile.first_position + static_cast<std::int32_t>(row / group);
    scratch.ranges[row] = within_chunk(visible_range(position, args.window), chunk_begin);
  }
  const Chunk chunk{args.kv.k, args.kv.v, scratch.offsets.data(),
                    within_chunk(tile.visible, chunk_begin), static_cast<std::size_t>(args.kv.D)};

  score_chunk<Element>(d, chunk, rows, scratch);
  for (std::size_t row = 0; row < rows; ++row)
    if (scratch.ranges[row].begin < scratch.ranges[row].end)
      softmax_row(d, scratch.ranges[row], scratch.scores + row * kChunkTokens, states, row);
  accumulate_chunk<Element>(d, chunk, rows, scratch, states);
}

template <class Element, class D>
void attend_spans_as(D d, const PagedAttentionArgs& args, const QueryTile& tile,
                     const TileSpans& item, AttentionScratch& scratch, SoftmaxStates stored) {
  const TileRows tile_rows(args, tile);
  gather_queries(d, args, tile_rows, scratch.q);
  clear(scratch.total, tile_rows.rows);
  for (std::int32_t span = item.first_span; span < item.end_span; ++span) {
    const SoftmaxStates states =
        tile.is_split() ? stored.from(tile.first_state + static_cast<std::int64_t>(tile_rows.rows) *
                                                             (span - tile.first_span()))
                        : scratch.span;
    clear(states, tile_rows.rows);
    const std::int32_t first =
        std::max(span * kSpanTokens, tile.visible.begin / kChunkTokens * kChunkTokens);
    const std::int32_t end = std::min((span + 1) * kSpanTokens, tile.visible.end);
    for (std::int32_t chunk = first; chunk < end; chunk += kChunkTokens)
      attend_chunk<Element>(d, args, tile, tile_rows.rows, chunk, scratch, states);
    if (tile.is_split()) continue;
    for (std::size_t row = 0; row < tile_rows.rows; ++row) merge_row(d, scratch.total, states, row);
  }
  if (!tile.is_split()) write_results(d, args, tile_rows, scratch.total);
}

/// Vectors are as wide as D is a multiple of.
template <class Element>
void attend_spans_of(const PagedAttentionArgs& args, const QueryTile& tile, const TileSpans& item,
                     AttentionScratch& scratch, SoftmaxStates stored) {
  const hn::CappedTag<float, 16> wide;
  const hn::CappedTag<float, 8> narrow;
  if (static_cast<std::size_t>(args.kv.D) % hn::Lanes(wide) == 0)
    attend_spans_as<Element>(wide, args, tile, item, scratch, stored);
  else
    attend_spans_as<Element>(narrow, args, tile, item, scratch, stored);
}

/// One item. An unsplit tile's results go to args.out, a split one's states to `stored`.
void attend_spans(const PagedAttentionArgs& args, const QueryTile& tile, const TileSpans& item,
                  AttentionScratch& scratch, SoftmaxStates stored) {
  switch (args.kv.dtype) {
    case Dtype::f32: return attend_spans_of<F32Element>(args, tile, item, scratch, stored);
    case Dtype::bf16: return attend_spans_of<Bf16Element>(args, tile, item, scratch, stored);
    case Dtype::f16: return attend_spans_of<F16Element>(args, tile, item, scratch, stored);
    default: return;
  }
}

template <class D>
void merge_spans_as(D d, const PagedAttentionArgs& args, const QueryTile& tile,
                    AttentionScratch& scratch, SoftmaxStates stored) {
  const TileRows tile_rows(args, tile);
  clear(scratch.total, tile_rows.rows);
  SoftmaxStates states = stored.from(tile.first_state);
  for (std::int32_t span = tile.first_span(); span < tile.end_span(); ++span) {
    for (std::size_t row = 0; row < tile_rows.rows; ++row) merge_row(d, scratch.total, states, row);
    states = states.from(static_cast<std::int64_t>(tile_rows.rows));
  }
  write_results(d, args, tile_rows, scratch.total);
}

/// Brings the states of a split tile together.
void merge_spans(const PagedAttentionArgs& args, const QueryTile& tile, AttentionScratch& scratch,
                 SoftmaxStates stored) {
  const hn::CappedTag<float, 16> wide;
  const hn::CappedTag<float, 8> narrow;
  if (static_cast<std::size_t>(args.kv.D) % hn::Lanes(wide) == 0)
    merge_spans_as(wide, args, tile, scratch, stored);
  else
    merge_spans_as(narrow, args, tile, scratch, stored);
}

#endif  // HWY_TARGET == HWY_SCALAR

}  // namespace HWY_NAMESPACE
}  // namespace kvhive
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvhive {
namespace {

HWY_EXPORT(has_vectors);
HWY_EXPORT(attend_spans);
HWY_EXPORT(merge_spans);

void run_plan(const PagedAttentionArgs& args, const AttentionPlan& plan) {
  const auto head_size = static_cast<std::size_t>(args.kv.D);
  const AlignedFloats memory = allocate_floats(static_cast<std::size_t>(plan.stored_states) *
                                               SoftmaxStates::stride(head_size));
  const SoftmaxStates stored{memory.get(), head_size};

#pragma omp parallel if (plan.items.size() > 1)
  {
    AttentionScratch scratch(static_cast<std::size_t>(plan.max_tile_rows), head_size);
#pragma omp for schedule(dynamic, 1) nowait
    for (const TileSpans& item : plan.items)
      HWY_DYNAMIC_DISPATCH(attend_spans)(args, plan.tiles[item.tile], item, scratch, stored);
    if (!plan.split_tiles.empty()) {
#pragma omp barrier
#pragma omp for schedule(dynamic, 1) nowait
      for (const std::size_t tile : plan.split_tiles)
        HWY_DYNAMIC_DISPATCH(merge_spans)(args, plan.tiles[tile], scratch, stored);
    }
  }
}

}  // namespace

void paged_attention_cpu(const PagedAttentionArgs& args) {
  KV_CHECK(args.q_dtype == Dtype::f32 && bytes_of(args.kv.dtype) > 1 &&
               args.kv.layout == PageLayout::rows,
           int(args.q_dtype), int(args.kv.dtype), int(args.kv.layout));
  KV_CHECK(args.lse == nullptr && args.alibi_slopes == nullptr && args.sinks == nullptr &&
               args.chunk == 0 && args.sparsity.block == 0 && args.soft_cap == 0,
           args.chunk, args.sparsity.block, args.soft_cap);
  KV_CHECK(args.kv.D > 0 && args.kv.D % 8 == 0, args.kv.D);
  if (!HWY_DYNAMIC_DISPATCH(has_vectors)()) return paged_attention_reference(args);
  run_plan(args, plan_attention(args, omp_get_max_threads()));
}

}  // namespace kvhive
#endif  // HWY_ONCE
