// Compiled for AVX-512 BF16 and called only where the CPU has it. Start reading at
// `attend_packed_spans` at the end.
//
// Decode is limited by memory, and no software prefetch reads memory as fast as the CPU's own
// prefetchers do when they see a few long runs side by side. So a chunk is read as a copy would
// read it: 4 token groups (4 blocks, if blocks have 16 tokens) side by side, first K of all kv
// heads, then V of all kv heads. This is also why V is added up group by group: 4 rows times 4
// groups are 16 sums, enough to keep two dot products per cycle in flight. Prefill takes 4 rows
// times 64 dims of one group instead, and gets the same bits.
//
// 8-bit elements are converted to bf16, exactly, in registers on their way to the dot product; if
// many rows share them, they are converted once for all rows. Scales multiply scores and weights.
// Loading 8-bit elements takes memory less time than the arithmetic takes, and the CPU's
// prefetchers do not work that far ahead; so each line prefetches the line at the same place in the
// next 4 token groups.

#include "kernels/cpu/packed_attention_avx512.hpp"

#include <immintrin.h>
#include <math.h>

#include "kernels/cpu/packed_lines-inl.hpp"

namespace kvhive {
namespace {

constexpr std::int32_t kGroupTokens = 16;  ///< tokens whose K share a line
constexpr std::int32_t kGroups = kChunkTokens / kGroupTokens;
constexpr std::int32_t kFewRows =
    8;  ///< up to this many rows, memory is slower than the arithmetic
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

/// The order of going through V: 4 token groups side by side and 16 dims at a time, or one group
/// and 64 dims at a time.
enum class Order { of_memory, of_dims };

/// Two bf16 in all lanes.
__m512bh pair_of(const std::uint16_t* elements) {
  int bits;
  __builtin_memcpy(&bits, elements, sizeof bits);
  return (__m512bh)_mm512_set1_epi32(bits);
}

constexpr std::int32_t kQuad = 4;  ///< token groups that are read side by side

/// Where the token groups of a chunk and of the 4 groups after it begin for kv head 0: bytes from
/// kv.k, kv.v and the scales.
struct Places {
  std::int64_t k[kGroups + kQuad];
  std::int64_t v[kGroups + kQuad];
  std::int64_t scales[kGroups + kQuad];
};

/// K or V of 4 token groups of one kv head.
struct Quad {
  Quad(const std::byte* head, const std::int64_t* places, std::int64_t strip) : step(strip) {
    for (std::int32_t j = 0; j < kQuad; ++j) {
      at[j] = head + places[j];
      ahead[j] = places[j + kQuad] - places[j];
    }
  }
  /// Reads widened lines, one group after the other; nothing needs to be prefetched.
  Quad(const std::byte* wide, std::int64_t group_bytes, std::int64_t strip) : step(strip) {
    for (std::int32_t j = 0; j < kQuad; ++j) {
      at[j] = wide + j * group_bytes;
      ahead[j] = 0;
    }
  }

  const std::byte* at[kQuad];
  std::int64_t ahead[kQuad];  ///< bytes to the group that is read next, 4 groups later
  std::int64_t step;          ///< bytes from one strip of lines (32 dims of K, 16 of V) to the next
};

/// Converts `count` lines of each of the quad's groups to bf16.
template <class Lines>
void widen_quad(const Lines& lines, const Quad& quad, std::int32_t strips, std::int32_t count,
                std::byte* to) {
  for (std::int32_t j = 0; j < kQuad; ++j)
    for (std::int32_t i = 0; i < strips; ++i, to += count * kLineBytes)
      widen_lines(lines, quad.at[j] + i * quad.step, count, to);
}

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

// ---- K ----

/// scores[row][4 groups of 16 tokens] = factor * (q[row] . k), for kRows rows.
template <int kRows, class Lines>
void score_tile(const Lines& all_lines, const Quad& k, const std::uint16_t* q,
                std::int32_t head_size, float factor, float* scores) {
  const Lines lines = all_lines;
  __m512 sums[kRows][4];
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) sums[r][j] = _mm512_setzero_ps();

  for (std::int32_t dim = 0; dim < head_size; dim += 32) {
    const std::int64_t part = dim / 32 * k.step;
    for (std::int32_t pair = 0; pair < 16; pair += 2) {
      TwoLines two[4];
#pragma GCC unroll 4
      for (int j = 0; j < 4; ++j)
        two[j] = load_and_fetch(lines, k.at[j] + part + pair * Lines::kBytes, k.ahead[j]);
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r) {
        const std::uint16_t* row = q + r * head_size + dim + 2 * pair;
        const __m512bh first = pair_of(row), second = pair_of(row + 2);
#pragma GCC unroll 4
        for (int j = 0; j < 4; ++j) sums[r][j] = _mm512_dpbf16_ps(sums[r][j], first, two[j].first);
#pragma GCC unroll 4
        for (int j = 0; j < 4; ++j)
          sums[r][j] = _mm512_dpbf16_ps(sums[r][j], second, two[j].second);
      }
    }
  }
  const __m512 factors = _mm512_set1_ps(factor);
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j)
      _mm512_storeu_ps(scores + r * kChunkTokens + j * kGroupTokens,
                       _mm512_mul_ps(sums[r][j], factors));
}

template <class Lines>
void score_rows(const Lines& lines, std::int32_t rows, const Quad& k, const std::uint16_t* q,
                std::int32_t head_size, float factor, float* scores) {
  switch (rows) {
    case 1: return score_tile<1>(lines, k, q, head_size, factor, scores);
    case 2: return score_tile<2>(lines, k, q, head_size, factor, scores);
    case 3: return score_tile<3>(lines, k, q, head_size, factor, scores);
    default: return score_tile<4>(lines, k, q, head_size, factor, scores);
  }
}

// ---- softmax ----

/// 2^x for x <= 0, with a relative error of 2e-7; results below 2^-126 may be 0. NaN stays NaN.
__m512 exp2_of(__m512 x) {
  x = _mm512_max_ps(_mm512_set1_ps(-150.0f), x);
  const __m512 whole = _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  const __m512 f = _mm512_sub_ps(x, whole);
  // Taylor series of 2^f, |f| <= 1/2.
  __m512 p = _mm512_set1_ps(1.5403530e-4f);
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(1.3333558e-3f));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(9.6181291e-3f));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(5.5504109e-2f));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(2.4022651e-1f));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(6.9314718e-1f));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(1.0f));
  return _mm512_scalef_ps(p, whole);
}

void scale_row(float* values, std::int32_t count, float factor) {
  const __m512 factors = _mm512_set1_ps(factor);
  for (std::int32_t i = 0; i < count; i += 16)
    _mm512_storeu_ps(values + i, _mm512_mul_ps(_mm512_loadu_ps(values + i), factors));
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
};

/// Turns a row's visible scores, times k's scales, into weights relative to the state's new max,
/// times v's scales; the weights of other tokens become 0. Rescales the state to the new max. Masks
/// by selection, not by arithmetic: the score or scale of a token that is not visible may be NaN.
void softmax_row(KvRange range, const Scales& scales, float* scores, std::uint16_t* weights,
                 State state, std::int32_t head_size) {
  const std::int32_t first = range.begin / kGroupTokens;
  const std::int32_t end = (range.end + kGroupTokens - 1) / kGroupTokens;
  __m512 maxima = _mm512_set1_ps(*state.max);
  for (std::int32_t i = first; i < end; ++i) {
    float* group = scores + i * kGroupTokens;
    const __m512 score =
        _mm512_mul_ps(_mm512_loadu_ps(group), _mm512_load_ps(scales.k + i * kGroupTokens));
    _mm512_storeu_ps(group, score);
    maxima = _mm512_mask_max_ps(maxima, visible_lanes(range, i), maxima, score);
  }
  const float max = _mm512_reduce_max_ps(maxima);

  const __m512 shift = _mm512_set1_ps(max);
  __m512 sums = _mm512_setzero_ps();
  for (std::int32_t i = first; i < end; ++i) {
    const __m512 score = _mm512_loadu_ps(scores + i * kGroupTokens);
    const __mmask16 visible = visible_lanes(range, i);
    const __m512 weight = _mm512_maskz_mov_ps(visible, exp2_of(_mm512_sub_ps(score, shift)));
    sums = _mm512_add_ps(sums, weight);
    const __m512 scaled =
        _mm512_maskz_mul_ps(visible, weight, _mm512_load_ps(scales.v + i * kGroupTokens));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(weights + i * kGroupTokens),
                        (__m256i)_mm512_cvtneps_pbh(scaled));
  }
  if (max != *state.max) {
    const float shrink = ::exp2f(*state.max - max);
    scale_row(state.acc, head_size, shrink);
    *state.sum *= shrink;
    *state.max = max;
  }
  *state.sum += _mm512_reduce_add_ps(sums);
}

// ---- V ----

/// acc[row][kDims * 16 dims] += weights[row] . v, group by group, for kRows rows that all see every
/// token of kGroupsAtOnce token groups.
template <int kRows, int kDims, int kGroupsAtOnce, class Lines>
void accumulate_tile(const Lines& all_lines, const Quad& v, std::int32_t first_group,
                     std::int64_t part, const std::uint16_t* weights, float* acc,
                     std::int64_t acc_stride) {
  const Lines lines = all_lines;
  __m512 sums[kRows][kGroupsAtOnce][kDims];
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 4
    for (int i = 0; i < kGroupsAtOnce; ++i)
#pragma GCC unroll 4
      for (int j = 0; j < kDims; ++j) sums[r][i][j] = _mm512_setzero_ps();

  for (std::int32_t pair = 0; pair < kGroupTokens / 2; pair += 2) {
    TwoLines two[kGroupsAtOnce][kDims];
#pragma GCC unroll 4
    for (int i = 0; i < kGroupsAtOnce; ++i)
#pragma GCC unroll 4
      for (int j = 0; j < kDims; ++j)
        two[i][j] =
            load_and_fetch(lines, v.at[first_group + i] + part + j * v.step + pair * Lines::kBytes,
                           v.ahead[first_group + i]);
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 4
      for (int i = 0; i < kGroupsAtOnce; ++i) {
        const std::uint16_t* row = weights + r * kChunkTokens + i * kGroupTokens + 2 * pair;
        const __m512bh first = pair_of(row), second = pair_of(row + 2);
#pragma GCC unroll 4
        for (int j = 0; j < kDims; ++j)
          sums[r][i][j] = _mm512_dpbf16_ps(sums[r][i][j], first, two[i][j].first);
#pragma GCC unroll 4
        for (int j = 0; j < kDims; ++j)
          sums[r][i][j] = _mm512_dpbf16_ps(sums[r][i][j], second, two[i][j].second);
      }
  }
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 4
    for (int j = 0; j < kDims; ++j) {
      float* to = acc + r * acc_stride + 16 * j;
      __m512 sum = _mm512_loadu_ps(to);
#pragma GCC unroll 4
      for (int i = 0; i < kGroupsAtOnce; ++i) sum = _mm512_add_ps(sum, sums[r][i][j]);
      _mm512_storeu_ps(to, sum);
    }
}

template <int kRows, int kDims, int kGroupsAtOnce, class Lines>
void accumulate_dims(const Lines& lines, const Quad& v, std::int32_t first_group,
                     std::int32_t head_size, const std::uint16_t* weights, float* acc) {
  const std::int64_t stride = packed_state_floats(head_size);
  std::int32_t dim = 0;
  for (; dim + 16 * kDims <= head_size; dim += 16 * kDims)
    accumulate_tile<kRows, kDims, kGroupsAtOnce>(lines, v, first_group, dim / 16 * v.step, weights,
                                                 acc + dim, stride);
  if constexpr (kDims > 2)
    if (dim < head_size)  // head_size is a multiple of 32
      accumulate_tile<kRows, 2, kGroupsAtOnce>(lines, v, first_group, dim / 16 * v.step, weights,
                                               acc + dim, stride);
}

/// The elements of a line of V that belong to tokens of `range`. The line holds token pair `pair`.
__mmask32 elements_of(KvRange range, std::int32_t pair) {
  const __mmask32 first = 2 * pair >= range.begin && 2 * pair < range.end ? 0x55555555u : 0;
  const __mmask32 second =
      2 * pair + 1 >= range.begin && 2 * pair + 1 < range.end ? 0xaaaaaaaau : 0;
  return first | second;
}

/// Adds a part of one token group to one row. Masked elements must not even be multiplied by 0:
/// they may be NaN.
template <class Lines>
void accumulate_part(const Lines& lines, const std::byte* v, std::int64_t step, KvRange tokens,
                     std::int32_t head_size, const std::uint16_t* weights, float* acc) {
  const auto masked = [&](__m512bh line, std::int32_t pair) {
    return (__m512bh)_mm512_maskz_mov_epi16(elements_of(tokens, pair), (__m512i)line);
  };
  for (std::int32_t dim = 0; dim < head_size; dim += 16, v += step) {
    __m512 sum = _mm512_setzero_ps();
    for (std::int32_t pair = tokens.begin / 4 * 2; 2 * pair < tokens.end; pair += 2) {
      const TwoLines two = lines.load(v + pair * Lines::kBytes);
      sum = _mm512_dpbf16_ps(sum, pair_of(weights + 2 * pair), masked(two.first, pair));
      sum = _mm512_dpbf16_ps(sum, pair_of(weights + 2 * pair + 2), masked(two.second, pair + 1));
    }
    _mm512_storeu_ps(acc + dim, _mm512_add_ps(_mm512_loadu_ps(acc + dim), sum));
  }
}

/// `range` counted from the start of token group i.
KvRange within_group(KvRange range, std::int32_t i) {
  return {larger(range.begin - i * kGroupTokens, 0),
          smaller(range.end - i * kGroupTokens, kGroupTokens)};
}

/// Adds 4 token groups to kRows rows; each row takes the tokens it sees.
template <int kRows, class Lines>
void accumulate_rows(const Lines& lines, const Quad& v, std::int32_t group, const KvRange* ranges,
                     Order order, std::int32_t head_size, const std::uint16_t* weights,
                     float* acc) {
  KvRange common = ranges[0];  // tokens that all rows see
  for (int r = 1; r < kRows; ++r)
    common = {larger(common.begin, ranges[r].begin), smaller(common.end, ranges[r].end)};
  if (order == Order::of_memory && common.begin <= group * kGroupTokens &&
      common.end >= (group + 4) * kGroupTokens)
    return accumulate_dims<kRows, 1, 4>(lines, v, 0, head_size, weights, acc);

  const std::int64_t stride = packed_state_floats(head_size);
  for (std::int32_t i = 0; i < 4; ++i) {
    const std::uint16_t* group_weights = weights + i * kGroupTokens;
    const KvRange all = within_group(common, group + i);
    if (all.begin == 0 && all.end == kGroupTokens) {
      accumulate_dims<kRows, 4, 1>(lines, v, i, head_size, group_weights, acc);
      continue;
    }
    for (int r = 0; r < kRows; ++r) {
      const KvRange tokens = within_group(ranges[r], group + i);
      if (tokens.begin < tokens.end)
        accumulate_part(lines, v.at[i], v.step, tokens, head_size, group_weights + r * kChunkTokens,
                        acc + r * stride);
    }
  }
}

template <class Lines>
void accumulate(const Lines& lines, std::int32_t rows, const Quad& v, std::int32_t group,
                const KvRange* ranges, Order order, std::int32_t head_size,
                const std::uint16_t* weights, float* acc) {
  switch (rows) {
    case 1: return accumulate_rows<1>(lines, v, group, ranges, order, head_size, weights, acc);
    case 2: return accumulate_rows<2>(lines, v, group, ranges, order, head_size, weights, acc);
    case 3: return accumulate_rows<3>(lines, v, group, ranges, order, head_size, weights, acc);
    default: return accumulate_rows<4>(lines, v, group, ranges, order, head_size, weights, acc);
  }
}

// ---- a chunk ----

/// The part of a chunk that a query at `position` sees, counted from the chunk's start; end <=
/// begin if there is none.
KvRange visible_in_chunk(std::int32_t position, std::int32_t window, std::int32_t chunk_begin) {
  const std::int32_t begin = window > 0 ? larger(0, position + 1 - window) : 0;
  return {larger(begin - chunk_begin, 0), smaller(position + 1 - chunk_begin, kChunkTokens)};
}

/// One chunk of a tile.
struct Chunk {
  const PagedAttentionArgs& args;
  const PackedTile& tile;
  const PackedScratch& scratch;
  const Places places;
  KvRange visible;         ///< to at least one row, counted from the chunk's start
  std::int32_t head_rows;  ///< rows of one kv head
  float* states;           ///< [rows]
};

/// Calls f(first of 4 token groups) for every 4 token groups of which some row sees a token.
template <class F>
void for_each_quad(KvRange visible, F&& f) {
  constexpr std::int32_t kQuadTokens = 4 * kGroupTokens;
  for (std::int32_t quad = visible.begin / kQuadTokens; quad * kQuadTokens < visible.end; ++quad)
    f(quad * 4);
}

/// Whether so many rows share 8-bit lines that converting them once for all rows is faster.
template <class Lines>
constexpr bool widens(std::int32_t head_rows) {
  return Lines::kBytes < kLineBytes && head_rows > kFewRows;
}

/// Computes the scores of all rows of kv head h of the tile over 4 token groups from `group` on.
template <class Lines>
void score_head(const Chunk& chunk, const Lines& lines, std::int32_t h, std::int32_t group,
                const Quad& k) {
  const std::int32_t head_size = chunk.args.kv.D;
  const float factor = chunk.args.scale * kLog2e;
  for (std::int32_t r = 0; r < chunk.head_rows; r += 4) {
    const std::int32_t count = smaller(4, chunk.head_rows - r);
    // Later rows see later tokens.
    if (chunk.scratch.ranges[r + count - 1].end <= group * kGroupTokens) continue;
    if (chunk.scratch.ranges[r].begin >= (group + 4) * kGroupTokens) continue;
    const std::int64_t row = h * chunk.head_rows + r;
    score_rows(lines, count, k, chunk.scratch.q + row * head_size, head_size, factor,
               chunk.scratch.scores + row * kChunkTokens + group * kGroupTokens);
  }
}

template <class Lines>
void score_chunk(const Chunk& chunk, const Lines& lines) {
  const PagedKv& kv = chunk.args.kv;
  for_each_quad(chunk.visible, [&](std::int32_t group) {
    for (std::int32_t h = 0; h < chunk.tile.heads; ++h) {
      const Quad k(kv.k + (chunk.tile.first_head + h) * kv.head_stride, &chunk.places.k[group],
                   kv.S * Lines::kBytes);
      if (!widens<Lines>(chunk.head_rows)) {
        score_head(chunk, lines, h, group, k);
        continue;
      }
      std::byte* wide = chunk.scratch.wide;
      widen_quad(lines, k, kv.D / 32, 16, wide);
      score_head(chunk, Bf16Lines(), h, group, Quad(wide, kv.D / 2 * kLineBytes, 16 * kLineBytes));
    }
  });
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
}

/// Memory would be idle while scores become weights. So each row prefetches some lines of the
/// chunk's first V into L2 meanwhile.
template <class Lines>
void weigh_chunk(const Chunk& chunk) {
  constexpr std::int64_t kFetchedBytes = 8 * kLineBytes;
  const PackedScratch& scratch = chunk.scratch;
  const PagedKv& kv = chunk.args.kv;
  const std::byte* values = kv.v + chunk.tile.first_head * kv.head_stride;
  const std::int32_t first_group = chunk.visible.begin / (4 * kGroupTokens) * 4;
  Scales scales;
  for (std::int32_t h = 0; h < chunk.tile.heads; ++h) {
    find_scales(chunk, h, scales);
    for (std::int32_t r = 0; r < chunk.head_rows; ++r) {
      const std::int64_t row = h * chunk.head_rows + r;
      if (Lines::kBytes == kLineBytes && chunk.head_rows <= kFewRows)
        for (std::int64_t at = row * kFetchedBytes; at < (row + 1) * kFetchedBytes;
             at += kLineBytes)
          for (std::int32_t j = 0; j < 4; ++j)
            _mm_prefetch(values + chunk.places.v[first_group + j] + at, _MM_HINT_T1);
      if (scratch.ranges[r].begin < scratch.ranges[r].end)
        softmax_row(scratch.ranges[r], scales, scratch.scores + row * kChunkTokens,
                    scratch.weights + row * kChunkTokens, state_at(chunk.states, row, kv.D), kv.D);
    }
  }
}

/// Adds the V of 4 token groups from `group` on to all rows of kv head h of the tile.
template <class Lines>
void accumulate_head(const Chunk& chunk, const Lines& lines, std::int32_t h, std::int32_t group,
                     const Quad& v) {
  const std::int32_t head_size = chunk.args.kv.D;
  const Order order = chunk.head_rows <= kFewRows ? Order::of_memory : Order::of_dims;
  for (std::int32_t r = 0; r < chunk.head_rows; r += 4) {
    const std::int64_t row = h * chunk.head_rows + r;
    accumulate(lines, smaller(4, chunk.head_rows - r), v, group, chunk.scratch.ranges + r, order,
               head_size, chunk.scratch.weights + row * kChunkTokens + group * kGroupTokens,
               state_at(chunk.states, row, head_size).acc);
  }
}

template <class Lines>
void accumulate_chunk(const Chunk& chunk, const Lines& lines) {
  const PagedKv& kv = chunk.args.kv;
  for_each_quad(chunk.visible, [&](std::int32_t group) {
    for (std::int32_t h = 0; h < chunk.tile.heads; ++h) {
      const Quad v(kv.v + (chunk.tile.first_head + h) * kv.head_stride, &chunk.places.v[group],
                   kv.S / 2 * Lines::kBytes);
      if (!widens<Lines>(chunk.head_rows)) {
        accumulate_head(chunk, lines, h, group, v);
        continue;
      }
      constexpr std::int32_t kLines = kGroupTokens / 2;  // of one group and 16 dims
      std::byte* wide = chunk.scratch.wide;
      widen_quad(lines, v, kv.D / 16, kLines, wide);
      accumulate_head(chunk, Bf16Lines(), h, group,
                      Quad(wide, kv.D / 2 * kLineBytes, kLines * kLineBytes));
    }
  });
}

/// Continues the states of all rows of the tile over one chunk.
template <class Lines>
void attend_chunk(const PagedAttentionArgs& args, const Lines& lines, const PackedTile& tile,
                  std::int32_t chunk_begin, std::int32_t head_rows, const PackedScratch& scratch,
                  float* states) {
  for (std::int32_t r = 0; r < head_rows; ++r)
    scratch.ranges[r] = visible_in_chunk(tile.first_position + r / (head_rows / tile.queries),
                                         args.window, chunk_begin);
  const KvRange visible{larger(tile.visible.begin - chunk_begin, 0),
                        smaller(tile.visible.end - chunk_begin, kChunkTokens)};
  const Chunk chunk{
      args,    tile,      scratch, find_places(args, tile, chunk_begin, Lines::kBytes),
      visible, head_rows, states};
  score_chunk(chunk, lines);
  weigh_chunk<Lines>(chunk);
  accumulate_chunk(chunk, lines);
}

// ---- a tile ----

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
                     _mm512_fmadd_ps(_mm512_loadu_ps(next.acc + i), next_factors, before));
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
                    std::uint16_t* to) {
  const std::int32_t head_size = args.kv.D;
  for (std::int64_t row = 0; row < rows; ++row, to += head_size) {
    const float* from = static_cast<const float*>(args.q) + place_of(args, tile, row) * head_size;
    for (std::int32_t i = 0; i < head_size; i += 16)
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + i),
                          (__m256i)_mm512_cvtneps_pbh(_mm512_loadu_ps(from + i)));
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
      _mm512_storeu_ps(to + i,
                       _mm512_div_ps(_mm512_mul_ps(_mm512_loadu_ps(state.acc + i), shrinks), sums));
  }
}

std::int64_t rows_of(const PagedAttentionArgs& args, const PackedTile& tile) {
  return std::int64_t{tile.heads} * tile.queries * (args.H / args.kv.G);
}

template <class Lines>
void attend_spans(const PagedAttentionArgs& args, const Lines& lines, const PackedTile& tile,
                  std::int32_t first_span, std::int32_t end_span, const PackedScratch& scratch,
                  float* stored) {
  const std::int32_t head_size = args.kv.D;
  const std::int64_t rows = rows_of(args, tile);
  const auto head_rows = static_cast<std::int32_t>(rows / tile.heads);
  const std::int32_t tile_span = tile.visible.begin / kSpanTokens;
  gather_queries(args, tile, rows, scratch.q);
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
         chunk < end; chunk += kChunkTokens)
      attend_chunk(args, lines, tile, chunk, head_rows, scratch, states);
    if (tile.first_state >= 0) continue;
    for (std::int64_t row = 0; row < rows; ++row)
      merge_row(state_at(scratch.total, row, head_size), state_at(states, row, head_size),
                head_size);
  }
  if (tile.first_state < 0) write_results(args, tile, rows, scratch.total);
}

}  // namespace

void attend_packed_spans(const PagedAttentionArgs& args, const Bf16OfCodes& codes,
                         const PackedTile& tile, std::int32_t first_span, std::int32_t end_span,
                         const PackedScratch& scratch, float* stored) {
  const auto attend = [&](const auto& lines) {
    attend_spans(args, lines, tile, first_span, end_span, scratch, stored);
  };
  switch (args.kv.dtype) {
    case Dtype::e4m3:
    case Dtype::e5m2: return attend(Fp8Lines(codes));
    case Dtype::int8: return attend(Int8Lines(codes));
    default: return attend(Bf16Lines());
  }
}

void merge_packed_spans(const PagedAttentionArgs& args, const PackedTile& tile,
                        const PackedScratch& scratch, float* stored) {
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

}  // namespace kvhive
