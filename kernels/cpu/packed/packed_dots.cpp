// Attention by bf16 dot products. Compiled for AVX-512 BF16 (by its instruction, and by
// multiplications: KVHIVE_MULTIPLIED), or emulated. Start reading at `attend_chunk` at the end.
//
// Decode is limited by memory, which is read fastest when the CPU's own prefetchers see a few long
// runs side by side. So a chunk is read as a copy would read it: 4 token groups (4 blocks, if
// blocks have 16 tokens) side by side, first K of all kv heads, then V of all kv heads. This is
// also why V is added up group by group: 4 rows times 4 groups are 16 sums, enough to keep two dot
// products per cycle in flight. Prefill takes 4 rows times 64 dims of one group instead, and gets
// the same bits.
//
// 8-bit elements are converted to bf16, exactly, in registers on their way to the dot product; if
// many rows share them, they are converted once for all rows. Scales multiply scores and weights.
// Loading 8-bit elements takes memory less time than the arithmetic takes, and the CPU's
// prefetchers do not work that far ahead; so each line prefetches the line at the same place in the
// next 4 token groups.

#include "kernels/cpu/packed/packed_rows-inl.hpp"

namespace kvhive {
namespace KVHIVE_INSTRUCTIONS {
namespace {

constexpr std::int32_t kFewRows =
    8;  ///< up to this many rows, memory is slower than the arithmetic

/// The order of going through V: 4 token groups side by side and 16 dims at a time, or one group
/// and 64 dims at a time.
enum class Order { of_memory, of_dims };

/// What is fetched while lines are used: 8-bit lines only, those of the next 4 token groups, or any
/// lines of the next kv head. What is faster was measured on a Zen and on a Xeon, which also differ
/// in the way of dot products.
#ifdef KVHIVE_MULTIPLIED
constexpr bool kFetchesNextHead = true;
#else
constexpr bool kFetchesNextHead = false;
#endif

/// K or V of 4 token groups of kv head h of the tile.
struct Quad {
  Quad(const Chunk& chunk, const std::byte* plane, std::int32_t h, const std::int64_t* places,
       std::int64_t strip)
      : step(strip) {
    const std::int64_t head = chunk.args.kv.head_stride;
    const bool goes_on = kFetchesNextHead && h + 1 < chunk.tile.heads;
    const std::int64_t back = kFetchesNextHead ? h * head : 0;  // to the first head
    for (std::int32_t j = 0; j < kQuad; ++j) {
      at[j] = plane + places[j] + (chunk.tile.first_head + h) * head;
      ahead[j] = goes_on ? head : places[j + kQuad] - places[j] - back;
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
  std::int64_t ahead[kQuad];  ///< bytes to what is fetched: of the next head, or 4 groups later
  std::int64_t step;          ///< bytes from one strip of lines (32 dims of K, 16 of V) to the next
};

/// Loads two lines, and fetches those that are `ahead` bytes further on into L1.
template <class Lines>
TwoLines load_and_fetch(const Lines& lines, const std::byte* at, std::int64_t ahead) {
  const TwoLines two = lines.load(at);
  if constexpr (Lines::kBytes < kLineBytes || kFetchesNextHead)
    _mm_prefetch(at + ahead, _MM_HINT_T0);
  if constexpr (Lines::kBytes == kLineBytes && kFetchesNextHead)
    _mm_prefetch(at + ahead + kLineBytes, _MM_HINT_T0);
  return two;
}

/// Converts `count` lines of each of the quad's groups to bf16.
template <class Lines>
void widen_quad(const Lines& lines, const Quad& quad, std::int32_t strips, std::int32_t count,
                std::byte* to) {
  for (std::int32_t j = 0; j < kQuad; ++j)
    for (std::int32_t i = 0; i < strips; ++i, to += count * kLineBytes)
      widen_lines(lines, quad.at[j] + i * quad.step, count, to);
}

// ---- K ----

/// scores[row][4 groups of 16 tokens] = q[row] . k, for kRows rows.
template <int kRows, class Lines>
void score_tile(const Lines& all_lines, const Quad& k, const DotNumber* q, std::int32_t head_size,
                float* scores) {
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
        const DotNumber* row = q + r * head_size + dim + 2 * pair;
        const DotPairs first = pair_of(row), second = pair_of(row + 2);
#pragma GCC unroll 4
        for (int j = 0; j < 4; ++j)
          sums[r][j] = add_dots(sums[r][j], first, pairs_of(two[j].first));
#pragma GCC unroll 4
        for (int j = 0; j < 4; ++j)
          sums[r][j] = add_dots(sums[r][j], second, pairs_of(two[j].second));
      }
    }
  }
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j)
      _mm512_storeu_ps(scores + r * kChunkTokens + j * kGroupTokens, sums[r][j]);
}

template <class Lines>
void score_rows(const Lines& lines, std::int32_t rows, const Quad& k, const DotNumber* q,
                std::int32_t head_size, float* scores) {
  switch (rows) {
    case 1: return score_tile<1>(lines, k, q, head_size, scores);
    case 2: return score_tile<2>(lines, k, q, head_size, scores);
    case 3: return score_tile<3>(lines, k, q, head_size, scores);
    default: return score_tile<4>(lines, k, q, head_size, scores);
  }
}

// ---- V ----

/// acc[row][kDims * 16 dims] += weights[row] . v, group by group, for kRows rows that all see every
/// token of kGroupsAtOnce token groups.
template <int kRows, int kDims, int kGroupsAtOnce, class Lines>
void accumulate_tile(const Lines& all_lines, const Quad& v, std::int32_t first_group,
                     std::int64_t part, const DotNumber* weights, float* acc,
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
        const DotNumber* row = weights + r * kChunkTokens + i * kGroupTokens + 2 * pair;
        const DotPairs first = pair_of(row), second = pair_of(row + 2);
#pragma GCC unroll 4
        for (int j = 0; j < kDims; ++j)
          sums[r][i][j] = add_dots(sums[r][i][j], first, pairs_of(two[i][j].first));
#pragma GCC unroll 4
        for (int j = 0; j < kDims; ++j)
          sums[r][i][j] = add_dots(sums[r][i][j], second, pairs_of(two[i][j].second));
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
                     std::int32_t head_size, const DotNumber* weights, float* acc) {
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

/// Adds a part of one token group to one row. Masked elements must not even be multiplied by 0:
/// they may be NaN.
template <class Lines>
void accumulate_part(const Lines& lines, const std::byte* v, std::int64_t step, KvRange tokens,
                     std::int32_t head_size, const DotNumber* weights, float* acc) {
  const auto masked = [&](__m512i line, std::int32_t pair) {
    return pairs_of(_mm512_maskz_mov_epi16(elements_of(tokens, pair), line));
  };
  for (std::int32_t dim = 0; dim < head_size; dim += 16, v += step) {
    __m512 sum = _mm512_setzero_ps();
    for (std::int32_t pair = tokens.begin / 4 * 2; 2 * pair < tokens.end; pair += 2) {
      const TwoLines two = lines.load(v + pair * Lines::kBytes);
      sum = add_dots(sum, pair_of(weights + 2 * pair), masked(two.first, pair));
      sum = add_dots(sum, pair_of(weights + 2 * pair + 2), masked(two.second, pair + 1));
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
                     Order order, std::int32_t head_size, const DotNumber* weights, float* acc) {
  KvRange common = ranges[0];  // tokens that all rows see
  for (int r = 1; r < kRows; ++r)
    common = {larger(common.begin, ranges[r].begin), smaller(common.end, ranges[r].end)};
  if (order == Order::of_memory && common.begin <= group * kGroupTokens &&
      common.end >= (group + 4) * kGroupTokens)
    return accumulate_dims<kRows, 1, 4>(lines, v, 0, head_size, weights, acc);

  const std::int64_t stride = packed_state_floats(head_size);
  for (std::int32_t i = 0; i < 4; ++i) {
    const DotNumber* group_weights = weights + i * kGroupTokens;
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
                const DotNumber* weights, float* acc) {
  switch (rows) {
    case 1: return accumulate_rows<1>(lines, v, group, ranges, order, head_size, weights, acc);
    case 2: return accumulate_rows<2>(lines, v, group, ranges, order, head_size, weights, acc);
    case 3: return accumulate_rows<3>(lines, v, group, ranges, order, head_size, weights, acc);
    default: return accumulate_rows<4>(lines, v, group, ranges, order, head_size, weights, acc);
  }
}

// ---- a chunk ----

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
  for (std::int32_t r = 0; r < chunk.head_rows; r += 4) {
    const std::int32_t count = smaller(4, chunk.head_rows - r);
    // Later rows see later tokens.
    if (chunk.scratch.ranges[r + count - 1].end <= group * kGroupTokens) continue;
    if (chunk.scratch.ranges[r].begin >= (group + 4) * kGroupTokens) continue;
    const std::int64_t row = h * chunk.head_rows + r;
    score_rows(lines, count, k, chunk.queries(row), head_size,
               chunk.scratch.scores + row * kChunkTokens + group * kGroupTokens);
  }
}

template <class Lines>
void score_chunk(const Chunk& chunk, const Lines& lines) {
  const PagedKv& kv = chunk.args.kv;
  for_each_quad(chunk.visible, [&](std::int32_t group) {
    for (std::int32_t h = 0; h < chunk.tile.heads; ++h) {
      const Quad k(chunk, kv.k, h, &chunk.places.k[group], kv.S * Lines::kBytes);
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

/// Memory would be idle while scores become weights. So each row prefetches some lines of the
/// chunk's first V into L2 meanwhile.
template <class Lines>
void weigh_chunk(const Chunk& chunk) {
  constexpr std::int64_t kFetchedBytes = 8 * kLineBytes;
  const PagedKv& kv = chunk.args.kv;
  const std::byte* values = kv.v + chunk.tile.first_head * kv.head_stride;
  const std::int32_t first_group = chunk.visible.begin / (4 * kGroupTokens) * 4;
  for (std::int32_t h = 0; h < chunk.tile.heads; ++h)
    softmax_head(chunk, h, chunk.args.scale * kLog2e, [&](std::int32_t r) {
      const std::int64_t row = h * chunk.head_rows + r;
      if (Lines::kBytes < kLineBytes || chunk.head_rows > kFewRows) return;
      for (std::int64_t at = row * kFetchedBytes; at < (row + 1) * kFetchedBytes; at += kLineBytes)
        for (std::int32_t j = 0; j < 4; ++j)
          _mm_prefetch(values + chunk.places.v[first_group + j] + at, _MM_HINT_T1);
    });
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
               head_size, chunk.weights(row) + group * kGroupTokens,
               state_at(chunk.states, row, head_size).acc);
  }
}

template <class Lines>
void accumulate_chunk(const Chunk& chunk, const Lines& lines) {
  const PagedKv& kv = chunk.args.kv;
  for_each_quad(chunk.visible, [&](std::int32_t group) {
    for (std::int32_t h = 0; h < chunk.tile.heads; ++h) {
      const Quad v(chunk, kv.v, h, &chunk.places.v[group], kv.S / 2 * Lines::kBytes);
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

struct Dots {
  /// Continues the states of all rows of the tile over one chunk.
  template <class Lines>
  static void attend_chunk(const Chunk& chunk, const Lines& lines, bool /*is_first*/) {
    score_chunk(chunk, lines);
    weigh_chunk<Lines>(chunk);
    accumulate_chunk(chunk, lines);
  }
};

}  // namespace

const PackedFunctions kPackedDots{attend_spans<Dots>, merge_spans, 64, sizeof(DotNumber)};

}  // namespace KVHIVE_INSTRUCTIONS
}  // namespace kvhive
