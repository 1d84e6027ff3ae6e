#pragma once
// What attention over packed pages by dot products and by tiles share: the states of rows, softmax,
// where token groups lie, queries and results. Of internal linkage
// (kernels/cpu/instructions/README.md).

#include <math.h>

#include "kernels/cpu/instructions/dots.hpp"
#include "kernels/cpu/instructions/vectors.hpp"
#include "kernels/cpu/packed/packed_lines-inl.hpp"
#include "kernels/cpu/packed/packed_spans.hpp"

namespace kvhive {
namespace KVHIVE_INSTRUCTIONS {
namespace {

constexpr std::int32_t kGroupTokens = 16;  ///< tokens whose K share a line
constexpr std::int32_t kGroups = kChunkTokens / kGroupTokens;
constexpr float kLog2e = 1.44269504088896340736f;
constexpr float kLn2 = 0.69314718055994530942f;

std::int32_t smaller(std::int32_t a, std::int32_t b) { return a < b ? a : b; }
std::int32_t larger(std::int32_t a, std::int32_t b) { return a < b ? b : a; }

/// The state of one row; see packed_state_floats().
struct State {
  float* acc;
  float* max;
  float* sum;
};

State state_at(float* states, std::int64_t row, std::int32_t head_size) {
  float* acc = states + row * packed_state_floats(head_size);
  return {acc, acc + head_size, acc + head_size + 1};
}

constexpr std::int32_t kQuad = 4;  ///< token groups that are read side by side

/// Where the token groups of a chunk and of the 4 groups after it begin for kv head 0: bytes from
/// kv.k, kv.v and the scales.
struct Places {
  std::int64_t k[kGroups + kQuad];
  std::int64_t v[kGroups + kQuad];
  std::int64_t scales[kGroups + kQuad];
};

/// Token groups outside `visible` get the place of the nearest group inside it: entries of the
/// block table that hold no visible token are never used.
Places find_places(const PagedAttentionArgs& args, const PackedTile& tile, std::int32_t chunk_begin,
                   std::int64_t line_bytes) {
  const PagedKv& kv = args.kv;
  const BlockId* table = args.block_table + std::int64_t{tile.b} * args.M;
  const std::int32_t first = tile.visible.begin / kGroupTokens;
  const std::int32_t last = (tile.visible.end - 1) / kGroupTokens;
  Places places;
  for (std::int32_t i = 0; i < kGroups + kQuad; ++i) {
    const std::int32_t group = smaller(larger(chunk_begin / kGroupTokens + i, first), last);
    const std::int32_t token = group * kGroupTokens;
    const std::int64_t block = table[token / kv.S].value;
    const std::int64_t slot = token % kv.S;
    places.k[i] = block * kv.block_stride + slot / kGroupTokens * 16 * line_bytes;
    places.v[i] = block * kv.block_stride + slot / 2 * line_bytes;
    places.scales[i] = block * kv.scales.block_stride + slot * kv.scales.token_stride;
  }
  return places;
}

/// The part of a chunk that a query at `position` sees, counted from the chunk's start; end <=
/// begin if there is none.
KvRange visible_in_chunk(const PagedAttentionArgs& args, std::int32_t position,
                         std::int32_t chunk_begin) {
  const std::int32_t in_window = args.window > 0 ? larger(0, position + 1 - args.window) : 0;
  const std::int32_t own_chunk = args.chunk > 0 ? position / args.chunk * args.chunk : 0;
  const std::int32_t begin = larger(in_window, own_chunk);
  return {larger(begin - chunk_begin, 0), smaller(position + 1 - chunk_begin, kChunkTokens)};
}

// ---- softmax ----

/// 2^x for x <= 0, with a relative error of 2e-7; at least 2^-100, which is nothing beside the
/// largest weight of 1, and times a scale is not a denormal: making one takes some CPUs a hundred
/// times as long. NaN stays NaN.
__m512 exp2_of(__m512 x) {
  x = _mm512_max_ps(_mm512_set1_ps(-100.0f), x);
  const __m512 whole = _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  const __m512 f = _mm512_sub_ps(x, whole);
  // The polynomial nearest to 2^f, |f| <= 1/2, but for its first term: 2^0 is 1.
  __m512 p = _mm512_set1_ps(1.327647245e-3f);
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(9.675540961e-3f));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(5.550713092e-2f));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(2.402212024e-1f));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(6.931469440e-1f));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(1.0f));
  return _mm512_scalef_ps(p, whole);
}

/// A row that sees no token of a tile may have had 0 added to its sums: -0 became 0, and alone it
/// would not have. So what is read of sums has no -0.
__m512 without_sign_of_zero(const float* sums) {
  return _mm512_add_ps(_mm512_loadu_ps(sums), _mm512_setzero_ps());
}

/// The lanes of token group `i` that are in `range`.
__mmask16 visible_lanes(KvRange range, std::int32_t i) {
  const std::int32_t begin = larger(range.begin - i * kGroupTokens, 0);
  const std::int32_t end = smaller(range.end - i * kGroupTokens, kGroupTokens);
  return begin < end ? static_cast<__mmask16>((0xffffu >> (16 - end)) & (0xffffu << begin)) : 0;
}

/// The scales of a chunk's tokens for one kv head.
struct Scales {
  alignas(64) float k[kChunkTokens];
  alignas(64) float v[kChunkTokens];
  bool has_v;  ///< else all are 1
};

bool is_whole_chunk(KvRange range) { return range.begin == 0 && range.end == kChunkTokens; }

/// The largest of `before` and of a row's visible scores, times k's scales.
float max_of_row(KvRange range, const Scales& scales, const float* scores, float before) {
  const auto score = [&](std::int32_t i) {
    return _mm512_mul_ps(_mm512_loadu_ps(scores + i * kGroupTokens),
                         _mm512_load_ps(scales.k + i * kGroupTokens));
  };
  if (is_whole_chunk(range)) {
    static_assert(kGroups == 8);
    const __m512 a = _mm512_max_ps(score(0), score(1)), b = _mm512_max_ps(score(2), score(3));
    const __m512 c = _mm512_max_ps(score(4), score(5)), d = _mm512_max_ps(score(6), score(7));
    const __m512 all = _mm512_max_ps(_mm512_max_ps(a, b), _mm512_max_ps(c, d));
    return _mm512_reduce_max_ps(_mm512_max_ps(all, _mm512_set1_ps(before)));
  }
  __m512 maxima = _mm512_set1_ps(before);
  for (std::int32_t i = range.begin / kGroupTokens; i * kGroupTokens < range.end; ++i)
    maxima = _mm512_mask_max_ps(maxima, visible_lanes(range, i), maxima, score(i));
  return _mm512_reduce_max_ps(maxima);
}

/// Turns a row's visible scores, times k's scales, into weights relative to `max`, times v's
/// scales; the weights of other tokens in the same groups become 0. Returns the sum of the weights
/// without v's scales. Masks by selection, not by arithmetic: the score or scale of a token that is
/// not visible may be NaN.
float weigh_row(KvRange range, const Scales& scales, const float* scores, float max,
                DotNumber* weights) {
  const __m512 shift = _mm512_set1_ps(max);
  __m512 sums = _mm512_setzero_ps();
  const auto weight = [&](std::int32_t i) {
    const __m512 score = _mm512_mul_ps(_mm512_loadu_ps(scores + i * kGroupTokens),
                                       _mm512_load_ps(scales.k + i * kGroupTokens));
    return exp2_of(_mm512_sub_ps(score, shift));
  };
  if (is_whole_chunk(range)) {
#pragma GCC unroll 8
    for (std::int32_t i = 0; i < kGroups; ++i) {
      const __m512 one = weight(i);
      sums = _mm512_add_ps(sums, one);
      store_numbers(
          scales.has_v ? _mm512_mul_ps(one, _mm512_load_ps(scales.v + i * kGroupTokens)) : one,
          weights + i * kGroupTokens);
    }
    return _mm512_reduce_add_ps(sums);
  }
  for (std::int32_t i = range.begin / kGroupTokens; i * kGroupTokens < range.end; ++i) {
    const __mmask16 visible = visible_lanes(range, i);
    const __m512 one = _mm512_maskz_mov_ps(visible, weight(i));
    sums = _mm512_add_ps(sums, one);
    store_numbers(_mm512_maskz_mul_ps(visible, one, _mm512_load_ps(scales.v + i * kGroupTokens)),
                  weights + i * kGroupTokens);
  }
  return _mm512_reduce_add_ps(sums);
}

/// Loads the scales of a token group, `stride` bytes apart.
__m512 scales_of_group(const std::byte* at, std::int64_t stride) {
  if (stride == sizeof(float)) return _mm512_loadu_ps(at);
  if (stride == 0) return _mm512_broadcastss_ps(_mm_load_ss(reinterpret_cast<const float*>(at)));
  alignas(64) float scales[kGroupTokens];
  for (std::int32_t i = 0; i < kGroupTokens; ++i)
    __builtin_memcpy(&scales[i], at + i * stride, sizeof(float));
  return _mm512_load_ps(scales);
}

// ---- states of rows ----

void scale_row(float* values, std::int32_t count, float factor) {
  const __m512 factors = _mm512_set1_ps(factor);
  for (std::int32_t i = 0; i < count; i += 16)
    _mm512_storeu_ps(values + i, _mm512_mul_ps(_mm512_loadu_ps(values + i), factors));
}

void clear(float* states, std::int64_t rows, std::int32_t head_size) {
  for (std::int64_t row = 0; row < rows; ++row) {
    const State state = state_at(states, row, head_size);
    for (std::int32_t i = 0; i < head_size; ++i) state.acc[i] = 0.0f;
    *state.max = -INFINITY;
    *state.sum = 0.0f;
  }
}

/// Merges `next` into `into`, whose positions come before those of `next`.
void merge_row(State into, State next, std::int32_t head_size) {
  if (*next.sum == 0.0f) return;
  const float max = *into.max < *next.max ? *next.max : *into.max;
  const float into_factor = *into.sum == 0.0f ? 0.0f : ::exp2f(*into.max - max);
  const float next_factor = ::exp2f(*next.max - max);
  *into.max = max;
  *into.sum = *into.sum * into_factor + *next.sum * next_factor;
  const __m512 into_factors = _mm512_set1_ps(into_factor);
  const __m512 next_factors = _mm512_set1_ps(next_factor);
  for (std::int32_t i = 0; i < head_size; i += 16) {
    const __m512 before = _mm512_mul_ps(_mm512_loadu_ps(into.acc + i), into_factors);
    _mm512_storeu_ps(into.acc + i,
                     _mm512_fmadd_ps(without_sign_of_zero(next.acc + i), next_factors, before));
  }
}

/// The index of a tile's row in [T, H].
std::int64_t place_of(const PagedAttentionArgs& args, const PackedTile& tile, std::int64_t row) {
  const std::int32_t group = args.H / args.kv.G;
  const std::int32_t head_rows = tile.queries * group;
  const std::int64_t in_head = row % head_rows;
  return (tile.first_query + in_head / group) * std::int64_t{args.H} +
         (tile.first_head + row / head_rows) * group + in_head % group;
}

void gather_queries(const PagedAttentionArgs& args, const PackedTile& tile, std::int64_t rows,
                    DotNumber* to) {
  const std::int32_t head_size = args.kv.D;
  for (std::int64_t row = 0; row < rows; ++row, to += head_size) {
    const float* from = static_cast<const float*>(args.q) + place_of(args, tile, row) * head_size;
    for (std::int32_t i = 0; i < head_size; i += 16)
      store_numbers(_mm512_loadu_ps(from + i), to + i);
  }
}

void write_results(const PagedAttentionArgs& args, const PackedTile& tile, std::int64_t rows,
                   float* states) {
  const std::int32_t head_size = args.kv.D;
  for (std::int64_t row = 0; row < rows; ++row) {
    const State state = state_at(states, row, head_size);
    const std::int64_t place = place_of(args, tile, row);
    float max = *state.max, sum = *state.sum, shrink = 1.0f;
    if (args.sinks != nullptr && args.sinks[place % args.H] > -INFINITY) {
      const float sink = args.sinks[place % args.H] * kLog2e;
      max = max < sink ? sink : max;
      shrink = sum == 0.0f ? 0.0f : ::exp2f(*state.max - max);
      sum = sum * shrink + ::exp2f(sink - max);
    }
    if (args.lse != nullptr) args.lse[place] = (max + ::log2f(sum)) * kLn2;
    const __m512 sums = _mm512_set1_ps(sum == 0.0f ? 1.0f : sum), shrinks = _mm512_set1_ps(shrink);
    float* to = static_cast<float*>(args.out) + place * head_size;
    for (std::int32_t i = 0; i < head_size; i += 16)
      _mm512_storeu_ps(
          to + i, _mm512_div_ps(_mm512_mul_ps(without_sign_of_zero(state.acc + i), shrinks), sums));
  }
}

std::int64_t rows_of(const PagedAttentionArgs& args, const PackedTile& tile) {
  return std::int64_t{tile.heads} * tile.queries * (args.H / args.kv.G);
}

// ---- a chunk ----

/// One chunk of a tile.
struct Chunk {
  const PagedAttentionArgs& args;
  const PackedTile& tile;
  const PackedScratch& scratch;
  const Places places;
  KvRange visible;         ///< to at least one row, counted from the chunk's start
  std::int32_t head_rows;  ///< rows of one kv head
  float* states;           ///< [rows]

  DotNumber* queries(std::int64_t row) const {
    return static_cast<DotNumber*>(scratch.q) + row * args.kv.D;
  }
  DotNumber* weights(std::int64_t row) const {
    return static_cast<DotNumber*>(scratch.weights) + row * kChunkTokens;
  }
};

/// The elements of a line of V that belong to tokens of `range`. The line holds token pair `pair`.
__mmask32 elements_of(KvRange range, std::int32_t pair) {
  const __mmask32 first = 2 * pair >= range.begin && 2 * pair < range.end ? 0x55555555u : 0;
  const __mmask32 second =
      2 * pair + 1 >= range.begin && 2 * pair + 1 < range.end ? 0xaaaaaaaau : 0;
  return first | second;
}

/// Calls f(first of 4 token groups) for every 4 token groups of which some row sees a token.
template <class F>
void for_each_quad(KvRange visible, F&& f) {
  constexpr std::int32_t kQuadTokens = 4 * kGroupTokens;
  for (std::int32_t quad = visible.begin / kQuadTokens; quad * kQuadTokens < visible.end; ++quad)
    f(quad * 4);
}

/// Finds the scales of kv head h of the tile for the tokens that some row sees; 1 if the cache has
/// none.
void find_scales(const Chunk& chunk, std::int32_t h, Scales& found) {
  const KvScales& scales = chunk.args.kv.scales;
  const std::int64_t head = (chunk.tile.first_head + h) * scales.head_stride;
  const auto fill = [&](const float* from, float* to) {
    __m512 values = _mm512_set1_ps(1.0f);
    for (std::int32_t i = chunk.visible.begin / kGroupTokens; i * kGroupTokens < chunk.visible.end;
         ++i) {
      if (from != nullptr)
        values = scales_of_group(
            reinterpret_cast<const std::byte*>(from) + head + chunk.places.scales[i],
            scales.token_stride);
      _mm512_store_ps(to + i * kGroupTokens, values);
    }
  };
  fill(scales.k, found.k);
  fill(scales.v, found.v);
  found.has_v = scales.v != nullptr;
}

/// Turns the scores of consecutive rows of kv head h into weights, and rescales their states to the
/// new maxima. In passes over all rows, without branches that depend on scores: a row alone is a
/// chain of operations, several rows keep the CPU busy.
///
/// \param factor      of all scores
/// \param before_row  called with each row's number in its head
template <class BeforeRow>
void softmax_head(const Chunk& chunk, std::int32_t h, float factor, BeforeRow&& before_row) {
  constexpr std::int32_t kMostRows = 16;  // at a time
  const std::int32_t head_size = chunk.args.kv.D;
  Scales scales;
  find_scales(chunk, h, scales);
  const __m512 factors = _mm512_set1_ps(factor);
  for (std::int32_t i = 0; i < kChunkTokens; i += 16)
    _mm512_store_ps(scales.k + i, _mm512_mul_ps(factors, _mm512_load_ps(scales.k + i)));
  for (std::int32_t first = 0; first < chunk.head_rows; first += kMostRows) {
    const std::int32_t count = smaller(kMostRows, chunk.head_rows - first);
    const std::int64_t row = std::int64_t{h} * chunk.head_rows + first;
    const KvRange* const ranges = chunk.scratch.ranges + first;
    const float* const scores = chunk.scratch.scores + row * kChunkTokens;
    alignas(64) float before[kMostRows] = {}, maxima[kMostRows] = {}, shrinks[kMostRows];
    for (std::int32_t r = 0; r < count; ++r) {
      before[r] = *state_at(chunk.states, row + r, head_size).max;
      maxima[r] = max_of_row(ranges[r], scales, scores + r * kChunkTokens, before[r]);
    }
    _mm512_store_ps(shrinks,
                    exp2_of(_mm512_sub_ps(_mm512_load_ps(before), _mm512_load_ps(maxima))));
    for (std::int32_t r = 0; r < count; ++r) {
      before_row(first + r);
      const float sum = weigh_row(ranges[r], scales, scores + r * kChunkTokens, maxima[r],
                                  chunk.weights(row + r));
      if (ranges[r].begin >= ranges[r].end) continue;
      const State state = state_at(chunk.states, row + r, head_size);
      scale_row(state.acc, head_size, shrinks[r]);
      *state.sum = *state.sum * shrinks[r] + sum;
      *state.max = maxima[r];
    }
  }
}

// ---- spans ----

template <class Kind, class Lines>
void attend_chunk(const PagedAttentionArgs& args, const Lines& lines, const PackedTile& tile,
                  std::int32_t chunk_begin, std::int32_t head_rows, const PackedScratch& scratch,
                  float* states, bool is_first) {
  for (std::int32_t r = 0; r < head_rows; ++r)
    scratch.ranges[r] =
        visible_in_chunk(args, tile.first_position + r / (head_rows / tile.queries), chunk_begin);
  const KvRange visible{larger(tile.visible.begin - chunk_begin, 0),
                        smaller(tile.visible.end - chunk_begin, kChunkTokens)};
  const Chunk chunk{
      args,    tile,      scratch, find_places(args, tile, chunk_begin, Lines::kBytes),
      visible, head_rows, states};
  Kind::attend_chunk(chunk, lines, is_first);
}

/// \param Kind  has attend_chunk(chunk, lines, whether it is the first of this call)
template <class Kind, class Lines>
void attend_spans_of(const PagedAttentionArgs& args, const Lines& lines, const PackedTile& tile,
                     std::int32_t first_span, std::int32_t end_span, const PackedScratch& scratch,
                     float* stored) {
  const WithoutDenormals none;
  bool is_first = true;
  const std::int32_t head_size = args.kv.D;
  const std::int64_t rows = rows_of(args, tile);
  const auto head_rows = static_cast<std::int32_t>(rows / tile.heads);
  const std::int32_t tile_span = tile.visible.begin / kSpanTokens;
  gather_queries(args, tile, rows, static_cast<DotNumber*>(scratch.q));
  clear(scratch.total, rows, head_size);
  for (std::int32_t span = first_span; span < end_span; ++span) {
    float* states =
        tile.first_state < 0
            ? scratch.span
            : state_at(stored, tile.first_state + rows * (span - tile_span), head_size).acc;
    clear(states, rows, head_size);
    const std::int32_t end = smaller((span + 1) * kSpanTokens, tile.visible.end);
    for (std::int32_t chunk =
             larger(span * kSpanTokens, tile.visible.begin / kChunkTokens * kChunkTokens);
         chunk < end; chunk += kChunkTokens) {
      attend_chunk<Kind>(args, lines, tile, chunk, head_rows, scratch, states, is_first);
      is_first = false;
    }
    if (tile.first_state >= 0) continue;
    for (std::int64_t row = 0; row < rows; ++row)
      merge_row(state_at(scratch.total, row, head_size), state_at(states, row, head_size),
                head_size);
  }
  if (tile.first_state < 0) write_results(args, tile, rows, scratch.total);
}

template <class Kind>
void attend_spans(const PagedAttentionArgs& args, const Bf16OfCodes& codes, const PackedTile& tile,
                  std::int32_t first_span, std::int32_t end_span, const PackedScratch& scratch,
                  float* stored) {
  const auto attend = [&](const auto& lines) {
    attend_spans_of<Kind>(args, lines, tile, first_span, end_span, scratch, stored);
  };
  switch (args.kv.dtype) {
    case Dtype::e4m3:
    case Dtype::e5m2: return attend(Fp8Lines(codes));
    case Dtype::int8: return attend(Int8Lines(codes));
    default: return attend(Bf16Lines());
  }
}

void merge_spans(const PagedAttentionArgs& args, const PackedTile& tile,
                 const PackedScratch& scratch, float* stored) {
  const WithoutDenormals none;
  const std::int32_t head_size = args.kv.D;
  const std::int64_t rows = rows_of(args, tile);
  const std::int32_t spans =
      (tile.visible.end + kSpanTokens - 1) / kSpanTokens - tile.visible.begin / kSpanTokens;
  clear(scratch.total, rows, head_size);
  for (std::int32_t span = 0; span < spans; ++span)
    for (std::int64_t row = 0; row < rows; ++row)
      merge_row(state_at(scratch.total, row, head_size),
                state_at(stored, tile.first_state + span * rows + row, head_size), head_size);
  write_results(args, tile, rows, scratch.total);
}

}  // namespace
}  // namespace KVHIVE_INSTRUCTIONS
}  // namespace kvhive
