// Attention by tiles. Compiled for AMX, or emulated. Start reading at `Tiles` at the end.
//
// The left operand is up to 16 rows of one kv head: their queries, then their weights. K's tiles
// (32 dims of 16 tokens) are used as they lie. A tile of V has 32 tokens, and those of two groups
// lie apart, so lines of V are moved side by side; 8-bit elements are converted on the way. So a
// row's scores are added up over steps of 32 dims, its sums over steps of 32 tokens, whatever other
// rows there are.
//
// A tile that was stored just now is loaded late: loads of tiles wait until stores have left the
// core. So what is moved or converted is moved some tiles ahead.
//
// Few rows (decode) are limited by memory: all kv heads are read in the order of memory, 4 token
// groups side by side, each line fetched in the same order some lines ahead, at an even pace; while
// softmax leaves memory idle, more is fetched. Many rows (prefill) are limited by tiles: two tiles
// of rows share two of K or V.

#include "kernels/cpu/instructions/tiles.hpp"
#include "kernels/cpu/packed/packed_rows-inl.hpp"

namespace kvhive {
namespace KVHIVE_INSTRUCTIONS {
namespace {

constexpr std::int32_t kTileLines = 16;
constexpr std::int64_t kTileBytes = kTileLines * kLineBytes;
constexpr std::int32_t kFewRows = 16;  ///< one tile
constexpr std::int32_t kPairTokens = 2 * kGroupTokens;
constexpr std::int32_t kPairs = kChunkTokens / kPairTokens;
constexpr std::int32_t kQuadTokens = kQuad * kGroupTokens;
constexpr std::int64_t kScoreStride = kChunkTokens * 4;   // bytes
constexpr std::int64_t kWeightStride = kChunkTokens * 2;  // bytes

/// Sums, queries or weights have `rows` rows; K and V have whole tiles.
void set_tile_rows(std::int32_t rows) {
  TileSizes sizes;
  for (int t = 0; t < 8; ++t) {
    sizes.rows[t] = static_cast<std::uint8_t>(t == 5 || t == 7 ? kTileLines : rows);
    sizes.row_bytes[t] = 64;
  }
  KVHIVE_SET_TILE_SIZES(sizes);
}

// ---- where K and V are ----

const std::byte* k_page(const Chunk& chunk, std::int32_t h) {
  return chunk.args.kv.k + (chunk.tile.first_head + h) * chunk.args.kv.head_stride;
}
const std::byte* v_page(const Chunk& chunk, std::int32_t h) {
  return chunk.args.kv.v + (chunk.tile.first_head + h) * chunk.args.kv.head_stride;
}
/// From 32 dims of K of a token group to the next 32.
template <class Lines>
std::int64_t k_step(const PagedKv& kv) {
  return kv.S * Lines::kBytes;
}
/// From 16 dims of V to the next 16.
template <class Lines>
std::int64_t v_step(const PagedKv& kv) {
  return kv.S / 2 * Lines::kBytes;
}

// ---- moving and converting ----

/// Writes lines `first`..`first`+7 of a tile of V: 16 dims of one token group. Tokens outside
/// `visible` become 0: they may be NaN.
template <class Lines>
inline __attribute__((always_inline)) void move_values(const Lines& lines, const std::byte* from,
                                                       KvRange visible, std::byte* to) {
  constexpr std::int32_t kLines = kGroupTokens / 2;
  if (visible.begin >= visible.end) {
    __builtin_memset(to, 0, kLines * kLineBytes);
    return;
  }
  if (visible.begin == 0 && visible.end == kGroupTokens) {
#pragma GCC unroll 4
    for (std::int32_t i = 0; i < kLines; i += 2) {
      const TwoLines two = lines.load(from + i * Lines::kBytes);
      _mm512_store_si512(to + i * kLineBytes, two.first);
      _mm512_store_si512(to + (i + 1) * kLineBytes, two.second);
    }
    return;
  }
  for (std::int32_t i = 0; i < kLines; i += 2) {
    const TwoLines two = lines.load(from + i * Lines::kBytes);
    _mm512_store_si512(to + i * kLineBytes,
                       _mm512_maskz_mov_epi16(elements_of(visible, i), two.first));
    _mm512_store_si512(to + (i + 1) * kLineBytes,
                       _mm512_maskz_mov_epi16(elements_of(visible, i + 1), two.second));
  }
}

/// Moves 16 dims of 32 tokens of V into a tile.
template <class Lines>
inline __attribute__((always_inline)) void move_pair(const Chunk& chunk, const Lines& lines,
                                                     std::int32_t h, std::int32_t strip,
                                                     std::int32_t pair, KvRange visible,
                                                     std::byte* to) {
  const std::byte* const page = v_page(chunk, h) + strip * v_step<Lines>(chunk.args.kv);
  for (std::int32_t half = 0; half < 2; ++half) {
    const std::int32_t group = 2 * pair + half, begin = group * kGroupTokens;
    move_values(lines, page + chunk.places.v[group],
                {larger(visible.begin - begin, 0), smaller(visible.end - begin, kGroupTokens)},
                to + half * kTileBytes / 2);
  }
}

/// Converts 32 dims of 16 tokens of K into a tile.
template <class Lines>
inline __attribute__((always_inline)) void move_keys(const Chunk& chunk, const Lines& lines,
                                                     std::int32_t h, std::int32_t dims,
                                                     std::int32_t group, std::byte* to) {
  widen_lines(lines, k_page(chunk, h) + chunk.places.k[group] + dims * k_step<Lines>(chunk.args.kv),
              kTileLines, to);
}

// ---- fetching ----

/// Fetches K and V of a chunk into the caches in the order in which few rows read them: quads of
/// token groups of K, then of V, then of the next chunk's K, each for all heads. A step is 32 dims
/// of a quad, and is fetched in four parts, some lines of each of its groups at a time.
template <class Lines>
class Fetch {
 public:
  /// Parts. Lines of bf16 are fetched into L1, a few parts before they are used; those of 8 bits,
  /// which take as much arithmetic in half the time, early into L2.
  static constexpr std::int32_t kAhead = Lines::kBytes == kLineBytes ? 6 : 32;

  /// \param ahead  parts that the last chunk has fetched already
  Fetch(const Chunk& chunk, std::int32_t ahead)
      : chunk_(chunk),
        dims_(chunk.args.kv.D / 32),
        first_(chunk.visible.begin / kQuadTokens),
        end_((chunk.visible.end + kQuadTokens - 1) / kQuadTokens),
        quad_(first_),
        ahead_(ahead) {
    find_step();
    for (std::int32_t i = 0; i < ahead; ++i) advance();
  }

  /// Before a part is used.
  inline __attribute__((always_inline)) void keep_ahead() {
    --ahead_;
    if (ahead_ >= kAhead && ++skipped_ % 4 == 0) return;  // softmax had time to fetch more
    fetch();
  }
  inline __attribute__((always_inline)) void fetch() {
    if (is_over_) return;
    const std::int64_t offset = offsets_[part_];
#pragma GCC unroll 4
    for (std::int32_t j = 0; j < kQuad; ++j)
#pragma GCC unroll 4
      for (std::int64_t i = 0; i < kPartBytes; i += kLineBytes)
        _mm_prefetch(at_[j] + offset + i, kHint);
    ++ahead_;
    advance();
  }
  std::int32_t ahead() const { return ahead_; }

 private:
  static constexpr std::int64_t kPartBytes = kTileLines * Lines::kBytes / 4;  ///< of each group
  static constexpr auto kHint = Lines::kBytes == kLineBytes ? _MM_HINT_T0 : _MM_HINT_T1;

  void advance() {
    if (++part_ == 4) next_step();
  }

  void next_step() {
    part_ = 0;
    if (++d_ == dims_) {
      d_ = 0;
      if (++h_ == chunk_.tile.heads) {
        h_ = 0;
        if (is_next_) {
          is_over_ = true;
          return;
        }
        if (++quad_ == end_) {
          is_next_ = !is_k_;
          quad_ = is_next_ ? kGroups / kQuad : first_;
          is_k_ = !is_k_;
        }
      }
    }
    find_step();
  }

  void find_step() {
    const PagedKv& kv = chunk_.args.kv;
    const std::int64_t* const places = (is_k_ ? chunk_.places.k : chunk_.places.v) + quad_ * kQuad;
    const std::byte* const page = is_k_ ? k_page(chunk_, h_) + d_ * k_step<Lines>(kv)
                                        : v_page(chunk_, h_) + 2 * d_ * v_step<Lines>(kv);
    for (std::int32_t j = 0; j < kQuad; ++j) at_[j] = page + places[j];
    // 32 dims of V are two strips.
    const std::int64_t second = is_k_ ? 2 * kPartBytes : v_step<Lines>(kv);
    offsets_[0] = 0;
    offsets_[1] = kPartBytes;
    offsets_[2] = second;
    offsets_[3] = second + kPartBytes;
  }

  const Chunk& chunk_;
  const std::int32_t dims_, first_, end_;
  std::int32_t quad_, h_ = 0, d_ = 0, part_ = 0, ahead_;
  std::uint32_t skipped_ = 0;
  bool is_k_ = true, is_next_ = false, is_over_ = false;
  const std::byte* at_[kQuad];
  std::int64_t offsets_[4];
};

// ---- softmax ----

/// Weights of the tokens that a row does not see, in the groups that some row sees.
void clear_weights(const Chunk& chunk, KvRange range, DotNumber* weights) {
  const std::int32_t first = chunk.visible.begin / kQuadTokens * kQuad;
  const std::int32_t end = (chunk.visible.end + kQuadTokens - 1) / kQuadTokens * kQuad;
  if (range.begin < (first + 1) * kGroupTokens && range.end > (end - 1) * kGroupTokens) return;
  for (std::int32_t i = first; i < end; ++i)
    if (range.end <= i * kGroupTokens || range.begin >= (i + 1) * kGroupTokens)
      __builtin_memset(weights + i * kGroupTokens, 0, 2 * kGroupTokens);
}

/// Turns scores of kv head h into weights.
///
/// \param before_row  called before each row
template <class F>
void weigh_head(const Chunk& chunk, std::int32_t h, F&& before_row) {
  softmax_head(chunk, h, chunk.args.scale * kLog2e, [&](std::int32_t r) {
    before_row();
    const std::int64_t row = std::int64_t{h} * chunk.head_rows + r;
    clear_weights(chunk, chunk.scratch.ranges[r], chunk.weights(row));
  });
}

// ---- few rows ----

/// Goes through the visible quads of a chunk and the heads of each.
struct Visits {
  explicit Visits(const Chunk& chunk)
      : first(chunk.visible.begin / kQuadTokens),
        heads(chunk.tile.heads),
        count(((chunk.visible.end + kQuadTokens - 1) / kQuadTokens - first) * heads) {}

  std::int32_t quad(std::int32_t i) const { return first + i / heads; }
  std::int32_t head(std::int32_t i) const { return i % heads; }

  std::int32_t first, heads, count;
};

/// Tiles that are moved some units before they are used, into a ring of few lines: more would take
/// the place of lines that were fetched.
class MovedTiles {
 public:
  MovedTiles(const Chunk& chunk, const Visits& visits)
      : ring_(chunk.scratch.wide), units_(chunk.args.kv.D / 8), left_(visits.count * units_) {}

  /// Calls move(visit, unit, to) for the next tile.
  template <class Move>
  inline __attribute__((always_inline)) void move_next(const Move& move) {
    if (left_ == 0) return;
    --left_;
    move(visit_, unit_, place(moved_++));
    if (++unit_ < units_) return;
    unit_ = 0;
    ++visit_;
  }
  template <class Move>
  void begin(const Move& move) {
    for (std::int32_t i = 0; i < kLag; ++i) move_next(move);
  }
  inline __attribute__((always_inline)) const std::byte* use() { return place(used_++); }

 private:
  static constexpr std::int32_t kLag = 8;
  static constexpr std::int32_t kRing = 16;

  std::byte* place(std::int32_t i) const { return ring_ + i % kRing * kTileBytes; }

  std::byte* const ring_;
  const std::int32_t units_;  ///< of a visit
  std::int32_t left_, moved_ = 0, used_ = 0, visit_ = 0, unit_ = 0;
};

/// Scores of all heads, and weights from them: a head's softmax comes between the tiles of others,
/// so that memory is not left idle for long.
template <class Lines>
void weigh_few(const Chunk& chunk, const Lines& all_lines, Fetch<Lines>& fetch) {
  constexpr bool kConverts = Lines::kBytes < kLineBytes;
  const Lines lines = all_lines;
  const std::int32_t D = chunk.args.kv.D, rows = chunk.head_rows;
  const std::int64_t step = k_step<Lines>(chunk.args.kv);
  const Visits visits(chunk);
  const auto convert = [&](std::int32_t visit, std::int32_t unit, std::byte * to)
      __attribute__((always_inline)) {
    move_keys(chunk, lines, visits.head(visit), unit / kQuad,
              visits.quad(visit) * kQuad + unit % kQuad, to);
  };
  const auto fetch_more = [&] { fetch.fetch(); };
  MovedTiles tiles(chunk, visits);
  if constexpr (kConverts) tiles.begin(convert);
  for (std::int32_t i = 0; i < visits.count; ++i) {
    const std::int32_t h = visits.head(i), quad = visits.quad(i);
    const DotNumber* const q = chunk.queries(std::int64_t{h} * rows);
    const std::byte* const page = k_page(chunk, h);
    const std::byte* at[kQuad];
    for (std::int32_t j = 0; j < kQuad; ++j) at[j] = page + chunk.places.k[quad * kQuad + j];
    KVHIVE_TILE_ZERO(0);
    KVHIVE_TILE_ZERO(1);
    KVHIVE_TILE_ZERO(2);
    KVHIVE_TILE_ZERO(3);
    for (std::int32_t d = 0; d < D / 32; ++d) {
      KVHIVE_TILE_LOAD(4, q + 32 * d, 2 * D);
      const auto tile = [&](std::int32_t j) __attribute__((always_inline))->const std::byte* {
        fetch.keep_ahead();
        if constexpr (!kConverts) return at[j] + d * step;
        tiles.move_next(convert);
        return tiles.use();
      };
      KVHIVE_TILE_LOAD(5, tile(0), kLineBytes);
      KVHIVE_TILE_ADD_PRODUCT(0, 4, 5);
      KVHIVE_TILE_LOAD(5, tile(1), kLineBytes);
      KVHIVE_TILE_ADD_PRODUCT(1, 4, 5);
      KVHIVE_TILE_LOAD(5, tile(2), kLineBytes);
      KVHIVE_TILE_ADD_PRODUCT(2, 4, 5);
      KVHIVE_TILE_LOAD(5, tile(3), kLineBytes);
      KVHIVE_TILE_ADD_PRODUCT(3, 4, 5);
    }
    float* const scores =
        chunk.scratch.scores + std::int64_t{h} * rows * kChunkTokens + quad * kQuadTokens;
    KVHIVE_TILE_STORE(0, scores, kScoreStride);
    KVHIVE_TILE_STORE(1, scores + 16, kScoreStride);
    KVHIVE_TILE_STORE(2, scores + 32, kScoreStride);
    KVHIVE_TILE_STORE(3, scores + 48, kScoreStride);
    if (i > visits.count - visits.heads) weigh_head(chunk, h - 1, fetch_more);
  }
  weigh_head(chunk, visits.heads - 1, fetch_more);
}

/// Adds V of all visible tokens to rows of all heads of the tile.
template <class Lines>
void accumulate_few(const Chunk& chunk, const Lines& all_lines, Fetch<Lines>& fetch) {
  constexpr std::int32_t kPairsOfQuad = kQuad / 2;
  const Lines lines = all_lines;
  const std::int32_t D = chunk.args.kv.D, rows = chunk.head_rows;
  const std::int64_t stride = packed_state_floats(D);
  const Visits visits(chunk);
  // A visit's tiles: 16 dims of the first pair of groups, of the second, the next 16 dims ...
  const auto move = [&](std::int32_t visit, std::int32_t unit, std::byte * to)
      __attribute__((always_inline)) {
    move_pair(chunk, lines, visits.head(visit), unit / kPairsOfQuad,
              visits.quad(visit) * kPairsOfQuad + unit % kPairsOfQuad, chunk.visible, to);
  };
  MovedTiles tiles(chunk, visits);
  tiles.begin(move);
  for (std::int32_t i = 0; i < visits.count; ++i) {
    const std::int32_t h = visits.head(i), quad = visits.quad(i);
    const DotNumber* const weights = chunk.weights(std::int64_t{h} * rows) + quad * kQuadTokens;
    for (std::int32_t strip = 0; strip < D / 16; strip += 2) {
      float* const acc = state_at(chunk.states, h * rows, D).acc + 16 * strip;
      KVHIVE_TILE_LOAD(0, acc, 4 * stride);
      KVHIVE_TILE_LOAD(1, acc + 16, 4 * stride);
      const auto tile = [&]() __attribute__((always_inline))->const std::byte* {
        fetch.keep_ahead();
        tiles.move_next(move);
        return tiles.use();
      };
      KVHIVE_TILE_LOAD(4, weights, kWeightStride);
      KVHIVE_TILE_LOAD(6, weights + kPairTokens, kWeightStride);
      KVHIVE_TILE_LOAD(5, tile(), kLineBytes);
      KVHIVE_TILE_ADD_PRODUCT(0, 4, 5);
      KVHIVE_TILE_LOAD(7, tile(), kLineBytes);
      KVHIVE_TILE_ADD_PRODUCT(0, 6, 7);
      KVHIVE_TILE_LOAD(5, tile(), kLineBytes);
      KVHIVE_TILE_ADD_PRODUCT(1, 4, 5);
      KVHIVE_TILE_LOAD(7, tile(), kLineBytes);
      KVHIVE_TILE_ADD_PRODUCT(1, 6, 7);
      KVHIVE_TILE_STORE(0, acc, 4 * stride);
      KVHIVE_TILE_STORE(1, acc + 16, 4 * stride);
    }
  }
}

// ---- many rows ----

/// Rows of one kv head that are multiplied together: two tiles of 16, or one of at most 16.
struct RowTiles {
  std::int32_t first;
  std::int32_t count;  ///< 32, or at most 16
};

/// Calls f(rows) for all rows of a kv head, and sets the sizes of tiles before.
template <class F>
void for_each_rows(std::int32_t rows, F&& f) {
  std::int32_t first = 0;
  if (rows >= 16) set_tile_rows(16);
  for (; first + 32 <= rows; first += 32) f(RowTiles{first, 32});
  if (first + 16 <= rows) {
    f(RowTiles{first, 16});
    first += 16;
  }
  if (first == rows) return;
  set_tile_rows(rows - first);
  f(RowTiles{first, rows - first});
}

/// What at least one of the rows sees. Later rows see later tokens.
KvRange visible_to(const Chunk& chunk, RowTiles rows) {
  const KvRange first = chunk.scratch.ranges[rows.first];
  const KvRange last = chunk.scratch.ranges[rows.first + rows.count - 1];
  return {first.begin, last.end};
}

/// Scores of one kv head's rows over the groups `group` and `group` + 1.
void score_pair(const Chunk& chunk, std::int32_t h, RowTiles rows, std::int32_t group,
                const std::byte* k0, const std::byte* k1, std::int64_t step) {
  const std::int32_t D = chunk.args.kv.D;
  const std::int64_t row = std::int64_t{h} * chunk.head_rows + rows.first;
  const DotNumber* q = chunk.queries(row);
  KVHIVE_TILE_ZERO(0);
  KVHIVE_TILE_ZERO(1);
  const bool has_two = rows.count > kFewRows;
  if (has_two) {
    KVHIVE_TILE_ZERO(2);
    KVHIVE_TILE_ZERO(3);
    for (std::int32_t d = 0; d < D; d += 32, q += 32, k0 += step, k1 += step) {
      KVHIVE_TILE_LOAD(4, q, 2 * D);
      KVHIVE_TILE_LOAD(5, k0, kLineBytes);
      KVHIVE_TILE_ADD_PRODUCT(0, 4, 5);
      KVHIVE_TILE_LOAD(7, k1, kLineBytes);
      KVHIVE_TILE_ADD_PRODUCT(1, 4, 7);
      KVHIVE_TILE_LOAD(6, q + 16 * D, 2 * D);
      KVHIVE_TILE_ADD_PRODUCT(2, 6, 5);
      KVHIVE_TILE_ADD_PRODUCT(3, 6, 7);
    }
  } else {
    for (std::int32_t d = 0; d < D; d += 32, q += 32, k0 += step, k1 += step) {
      KVHIVE_TILE_LOAD(4, q, 2 * D);
      KVHIVE_TILE_LOAD(5, k0, kLineBytes);
      KVHIVE_TILE_ADD_PRODUCT(0, 4, 5);
      KVHIVE_TILE_LOAD(7, k1, kLineBytes);
      KVHIVE_TILE_ADD_PRODUCT(1, 4, 7);
    }
  }
  float* const scores = chunk.scratch.scores + row * kChunkTokens + group * kGroupTokens;
  KVHIVE_TILE_STORE(0, scores, kScoreStride);
  KVHIVE_TILE_STORE(1, scores + 16, kScoreStride);
  if (has_two) {
    KVHIVE_TILE_STORE(2, scores + 16 * kChunkTokens, kScoreStride);
    KVHIVE_TILE_STORE(3, scores + 16 * kChunkTokens + 16, kScoreStride);
  }
}

template <class Lines>
void score_many(const Chunk& chunk, const Lines& lines, std::int32_t h) {
  constexpr bool kConverts = Lines::kBytes < kLineBytes;
  const PagedKv& kv = chunk.args.kv;
  const std::int32_t first = chunk.visible.begin / kPairTokens;
  const std::int32_t end = (chunk.visible.end + kPairTokens - 1) / kPairTokens;
  const std::int64_t group_bytes = kv.D / 32 * kTileBytes;
  if constexpr (kConverts)
    for (std::int32_t group = 2 * first; group < 2 * end; ++group)
      for (std::int32_t d = 0; d < kv.D / 32; ++d)
        move_keys(chunk, lines, h, d, group,
                  chunk.scratch.wide + group * group_bytes + d * kTileBytes);
  for_each_rows(chunk.head_rows, [&](RowTiles rows) {
    const KvRange visible = visible_to(chunk, rows);
    for (std::int32_t pair = first; pair < end; ++pair) {
      if (visible.end <= pair * kPairTokens || visible.begin >= (pair + 1) * kPairTokens) continue;
      const std::int32_t group = 2 * pair;
      if constexpr (kConverts) {
        const std::byte* const k = chunk.scratch.wide + group * group_bytes;
        score_pair(chunk, h, rows, group, k, k + group_bytes, kTileBytes);
      } else {
        const std::byte* const page = k_page(chunk, h);
        score_pair(chunk, h, rows, group, page + chunk.places.k[group],
                   page + chunk.places.k[group + 1], k_step<Lines>(kv));
      }
    }
  });
}

/// Where 16 dims of a pair of groups are, after they were moved.
std::byte* moved_pair(const Chunk& chunk, std::int32_t pair, std::int32_t strip) {
  return chunk.scratch.wide + (pair * (chunk.args.kv.D / 16) + strip) * kTileBytes;
}

/// Moves V of one kv head.
template <class Lines>
void move_chunk(const Chunk& chunk, const Lines& lines, std::int32_t h, KvRange visible) {
  for (std::int32_t pair = visible.begin / kPairTokens; pair * kPairTokens < visible.end; ++pair)
    for (std::int32_t strip = 0; strip < chunk.args.kv.D / 16; ++strip)
      move_pair(chunk, lines, h, strip, pair, visible, moved_pair(chunk, pair, strip));
}

/// Adds what was moved to rows of one kv head.
void add_moved(const Chunk& chunk, std::int32_t h, RowTiles rows, KvRange visible) {
  const std::int32_t D = chunk.args.kv.D;
  const std::int64_t row = std::int64_t{h} * chunk.head_rows + rows.first;
  const std::int64_t stride = packed_state_floats(D);
  const DotNumber* const weights = chunk.weights(row);
  const std::int32_t first = visible.begin / kPairTokens;
  const std::int32_t end = (visible.end + kPairTokens - 1) / kPairTokens;
  const bool has_two = rows.count > kFewRows;
  for (std::int32_t strip = 0; strip < D / 16; strip += 2) {
    float* const acc = state_at(chunk.states, row, D).acc + 16 * strip;
    KVHIVE_TILE_LOAD(0, acc, 4 * stride);
    KVHIVE_TILE_LOAD(1, acc + 16, 4 * stride);
    if (has_two) {
      KVHIVE_TILE_LOAD(2, acc + 16 * stride, 4 * stride);
      KVHIVE_TILE_LOAD(3, acc + 16 * stride + 16, 4 * stride);
    }
    for (std::int32_t pair = first; pair < end; ++pair) {
      KVHIVE_TILE_LOAD(4, weights + pair * kPairTokens, kWeightStride);
      KVHIVE_TILE_LOAD(5, moved_pair(chunk, pair, strip), kLineBytes);
      KVHIVE_TILE_ADD_PRODUCT(0, 4, 5);
      KVHIVE_TILE_LOAD(7, moved_pair(chunk, pair, strip + 1), kLineBytes);
      KVHIVE_TILE_ADD_PRODUCT(1, 4, 7);
      if (!has_two) continue;
      KVHIVE_TILE_LOAD(6, weights + 16 * kChunkTokens + pair * kPairTokens, kWeightStride);
      KVHIVE_TILE_ADD_PRODUCT(2, 6, 5);
      KVHIVE_TILE_ADD_PRODUCT(3, 6, 7);
    }
    KVHIVE_TILE_STORE(0, acc, 4 * stride);
    KVHIVE_TILE_STORE(1, acc + 16, 4 * stride);
    if (has_two) {
      KVHIVE_TILE_STORE(2, acc + 16 * stride, 4 * stride);
      KVHIVE_TILE_STORE(3, acc + 16 * stride + 16, 4 * stride);
    }
  }
}

/// Whether all that was moved is finite.
bool is_finite(const Chunk& chunk, KvRange visible) {
  const __m512i exponent = _mm512_set1_epi16(0x7f80);
  const std::int32_t first = visible.begin / kPairTokens;
  const std::int32_t end = (visible.end + kPairTokens - 1) / kPairTokens;
  const std::byte* at = moved_pair(chunk, first, 0);
  __mmask32 infinite = 0;
  for (const std::byte* const last = moved_pair(chunk, end, 0); at < last; at += kLineBytes)
    infinite |=
        _mm512_cmpeq_epi16_mask(_mm512_and_si512(_mm512_load_si512(at), exponent), exponent);
  return infinite == 0;
}

/// Whether some rows see what others do not.
bool rows_differ(const Chunk& chunk) {
  const KvRange first = chunk.scratch.ranges[0];
  const KvRange last = chunk.scratch.ranges[chunk.head_rows - 1];
  return first.begin != last.begin || first.end != last.end;
}

template <class Lines>
void accumulate_many(const Chunk& chunk, const Lines& lines, std::int32_t h) {
  move_chunk(chunk, lines, h, chunk.visible);
  // What a row does not see has weight 0, which hides numbers only.
  if (rows_differ(chunk) && !is_finite(chunk, chunk.visible)) {
    set_tile_rows(1);
    for (std::int32_t r = 0; r < chunk.head_rows; ++r) {
      const KvRange visible = chunk.scratch.ranges[r];
      if (visible.begin >= visible.end) continue;
      move_chunk(chunk, lines, h, visible);
      add_moved(chunk, h, {r, 1}, visible);
    }
    return;
  }
  for_each_rows(chunk.head_rows, [&](RowTiles rows) {
    const KvRange visible = visible_to(chunk, rows);
    if (visible.begin < visible.end) add_moved(chunk, h, rows, visible);
  });
}

// ---- a chunk ----

struct Tiles {
  /// Continues the states of all rows of the tile over one chunk.
  template <class Lines>
  static void attend_chunk(const Chunk& chunk, const Lines& lines, bool is_first) {
    // Rows that see different tokens may have to be separated (accumulate_many).
    if (chunk.head_rows <= kFewRows && !rows_differ(chunk))
      attend_few(chunk, lines, is_first);
    else
      attend_many(chunk, lines);
    KVHIVE_RELEASE_TILES();
  }

  template <class Lines>
  static void attend_few(const Chunk& chunk, const Lines& lines, bool is_first) {
    set_tile_rows(chunk.head_rows);
    Fetch<Lines> fetch(chunk, is_first ? 0 : Fetch<Lines>::kAhead);
    for (std::int32_t i = fetch.ahead(); i < Fetch<Lines>::kAhead; ++i) fetch.fetch();
    weigh_few(chunk, lines, fetch);
    accumulate_few(chunk, lines, fetch);
  }

  template <class Lines>
  static void attend_many(const Chunk& chunk, const Lines& lines) {
    for (std::int32_t h = 0; h < chunk.tile.heads; ++h) {
      score_many(chunk, lines, h);
      weigh_head(chunk, h, [] {});
      accumulate_many(chunk, lines, h);
    }
  }
};

}  // namespace

const PackedFunctions kPackedTiles{attend_spans<Tiles>, merge_spans, 128, sizeof(DotNumber)};

}  // namespace KVHIVE_INSTRUCTIONS
}  // namespace kvhive
