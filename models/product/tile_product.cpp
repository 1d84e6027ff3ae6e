// Compiled for AMX, or emulated; start reading at `multiply` at the end.
//
// Weights are the left operand, as they lie in the file: a tile of them is 8 or 16 columns of the
// result by 32 elements of K, a row of the tile anywhere in memory. The rows of x are the right
// operand, packed once. So an element of y is one f32 of a tile, to which the products are added in
// steps of 32 elements of K, from first to last: its bits do not know how many rows there are.

#include "models/product/tile_product.hpp"

#include "kernels/cpu/instructions/tiles.hpp"
#include "kernels/cpu/instructions/transpose-inl.hpp"
#include "kernels/cpu/instructions/vectors.hpp"

namespace kvhive {
namespace KVHIVE_INSTRUCTIONS {
namespace {

constexpr std::int32_t kStep = 32;         ///< elements of K in a tile
constexpr std::int64_t kLineBytes = 64;    ///< so many elements
constexpr std::int64_t kTileBytes = 1024;  ///< 16 lines
constexpr std::int32_t kStreams = 8;       ///< columns that are read side by side for few rows
constexpr std::int32_t kPanelRows = 32;  ///< of x, and columns of w, that are multiplied at a time

std::int32_t smaller(std::int32_t a, std::int32_t b) { return a < b ? a : b; }

std::int32_t steps_of(std::int32_t K) { return (K + kStep - 1) / kStep; }

__mmask16 first_lanes(std::int32_t count) {
  return count >= 16 ? 0xffff : static_cast<__mmask16>((1u << count) - 1);
}

/// Copies the elements of `rows` weight rows from element k on, fewer than a line, to lines that
/// are filled up with zeros.
void copy_tails(const std::byte* w, std::int64_t stride, std::int32_t rows, std::int32_t count,
                std::byte* lines) {
  __builtin_memset(lines, 0, static_cast<std::size_t>(rows * kLineBytes));
  for (std::int32_t r = 0; r < rows; ++r)
    __builtin_memcpy(lines + r * kLineBytes, w + r * stride, static_cast<std::size_t>(2 * count));
}

// ---- packing ----

/// Where 16 rows of x go: their tiles of 16 pairs of k, `width` rows wide.
struct PackedPlace {
  std::byte* first;
  std::int64_t step_bytes;  ///< from a tile to that of the next 32 elements
  std::int32_t width;
};

PackedPlace place_of(const ProductShape& shape, std::int32_t first_row, std::byte* packed) {
  if (shape.rows <= kFewTileRows) {
    const std::int32_t width = smaller(16, shape.rows), halves = (shape.rows + 15) / 16;
    const std::int64_t tile = 4 * width * 16;
    return {packed + first_row / 16 * tile, halves * tile, width};
  }
  const std::int64_t panel = std::int64_t{steps_of(shape.K)} * 2 * kTileBytes;
  return {packed + first_row / kPanelRows * panel + first_row % kPanelRows / 16 * kTileBytes,
          2 * kTileBytes, 16};
}

/// Rounds up to 16 rows; missing ones are 0.
void pack_half(const PackArgs& args, std::int32_t first_row) {
  const PackedPlace place = place_of(args.shape, first_row, args.packed);
  const std::int32_t K = args.shape.K;
  const std::int32_t rows = smaller(16, args.shape.rows - first_row);
  const float* x = args.x + std::int64_t{first_row} * K;
  const __mmask16 lanes = first_lanes(place.width);
  std::byte* to = place.first;
  for (std::int32_t k = 0; k < K; k += kStep, to += place.step_bytes) {
    __m512i r[16];
    const __mmask16 low = first_lanes(K - k);
    const __mmask16 high = K - k > 16 ? first_lanes(K - k - 16) : __mmask16{0};
#pragma GCC unroll 16
    for (std::int32_t i = 0; i < 16; ++i) {
      const float* row = x + std::int64_t{i} * K + k;
      r[i] = i < rows ? (__m512i)_mm512_cvtne2ps_pbh(_mm512_maskz_loadu_ps(high, row + 16),
                                                     _mm512_maskz_loadu_ps(low, row))
                      : _mm512_setzero_si512();
    }
    transpose_16x16(r);
#pragma GCC unroll 16
    for (std::int32_t i = 0; i < 16; ++i)
      _mm512_mask_storeu_ps(reinterpret_cast<float*>(to + std::int64_t{4} * i * place.width), lanes,
                            (__m512)r[i]);
  }
}

void pack(const PackArgs& args) {
  pack_half(args, args.first_row);
  if (args.shape.rows > kFewTileRows) pack_half(args, args.first_row + 16);
}

// ---- results ----

/// Writes 16 columns of up to 16 rows of y, which lie column by column in `sums`.
void write_tile(const float* sums, std::int32_t sums_stride, const float* bias, std::int32_t rows,
                std::int32_t columns, float* y, std::int64_t y_stride, bool streams) {
  __m512i r[16];
#pragma GCC unroll 16
  for (std::int32_t i = 0; i < 16; ++i)
    r[i] = i < columns ? _mm512_loadu_si512(sums + i * sums_stride) : _mm512_setzero_si512();
  transpose_16x16(r);
  const __mmask16 lanes = first_lanes(columns);
  const __m512 more = bias == nullptr ? _mm512_setzero_ps() : _mm512_maskz_loadu_ps(lanes, bias);
#pragma GCC unroll 16
  for (std::int32_t i = 0; i < 16; ++i) {
    if (i >= rows) return;
    const __m512 value = bias == nullptr ? (__m512)r[i] : _mm512_add_ps((__m512)r[i], more);
    float* const to = y + i * y_stride;
    if (streams)
      _mm512_stream_ps(to, value);
    else
      _mm512_mask_storeu_ps(to, lanes, value);
  }
}

// ---- few rows ----

/// Bytes that are fetched ahead in each stream. Into L2: into L1, or further, it was slower.
constexpr std::int64_t kAhead = 512;

/// Columns that are `apart` columns from each other, a tile row each, and all rows of x.
struct Streams {
  const ProductArgs& args;
  std::int32_t first;  ///< column
  std::int32_t count;  ///< of streams, at most kStreams
  std::int32_t apart;
};

template <int kHalves>
void few_rows(const Streams& streams, float* sums) {
  const ProductArgs& args = streams.args;
  const std::int32_t K = args.shape.K, width = smaller(16, args.shape.rows);
  TileSizes sizes;
  for (int t = 0; t < 8; ++t) {
    sizes.rows[t] = static_cast<std::uint8_t>(t == 4 ? 16 : streams.count);
    sizes.row_bytes[t] = static_cast<std::uint16_t>(t == 5 ? 64 : 4 * width);
  }
  KVHIVE_SET_TILE_SIZES(sizes);
  const std::int64_t row = 2 * std::int64_t{K}, stride = streams.apart * row;
  const std::int64_t x_tile = std::int64_t{64} * width, sums_row = 4 * kHalves * width;
  const std::int32_t whole = K / kStep * kStep;
  alignas(64) std::byte tails[kStreams * kLineBytes];
  for (std::int32_t i = 0; i < streams.apart; ++i, sums += streams.count * kHalves * width) {
    const std::byte* a = args.w + (streams.first + i) * row;
    const std::byte* b = args.packed;
    const auto add = [&](const std::byte* from, std::int64_t from_stride)
        __attribute__((always_inline)) {
      KVHIVE_TILE_LOAD(5, from, from_stride);
      KVHIVE_TILE_LOAD(4, b, 4 * width);
      KVHIVE_TILE_ADD_PRODUCT(0, 5, 4);
      if constexpr (kHalves > 1) {
        KVHIVE_TILE_LOAD(4, b + x_tile, 4 * width);
        KVHIVE_TILE_ADD_PRODUCT(1, 5, 4);
      }
      if constexpr (kHalves > 2) {
        KVHIVE_TILE_LOAD(4, b + 2 * x_tile, 4 * width);
        KVHIVE_TILE_ADD_PRODUCT(2, 5, 4);
      }
      if constexpr (kHalves > 3) {
        KVHIVE_TILE_LOAD(4, b + 3 * x_tile, 4 * width);
        KVHIVE_TILE_ADD_PRODUCT(3, 5, 4);
      }
      b += kHalves * x_tile;
    };
    KVHIVE_TILE_ZERO(0);
    if constexpr (kHalves > 1) KVHIVE_TILE_ZERO(1);
    if constexpr (kHalves > 2) KVHIVE_TILE_ZERO(2);
    if constexpr (kHalves > 3) KVHIVE_TILE_ZERO(3);
    for (const std::byte* const end = a + 2 * std::int64_t{whole}; a < end; a += kLineBytes) {
#pragma GCC unroll 8
      for (int r = 0; r < kStreams; ++r) _mm_prefetch(a + r * stride + kAhead, _MM_HINT_T1);
      add(a, stride);
    }
    if (whole < K) {
      copy_tails(a, stride, streams.count, K - whole, tails);
      add(tails, kLineBytes);
    }
    KVHIVE_TILE_STORE(0, sums, sums_row);
    if constexpr (kHalves > 1) KVHIVE_TILE_STORE(1, sums + width, sums_row);
    if constexpr (kHalves > 2) KVHIVE_TILE_STORE(2, sums + 2 * width, sums_row);
    if constexpr (kHalves > 3) KVHIVE_TILE_STORE(3, sums + 3 * width, sums_row);
  }
}

/// Writes what few_rows() left in `sums`: [apart][streams][rows].
void write_streams(const Streams& streams, const float* sums) {
  constexpr std::int32_t kNarrow = 8;  // rows up to which elements are moved one by one
  const ProductArgs& args = streams.args;
  const std::int32_t rows = args.shape.rows;
  const std::int32_t wide = (rows + 15) / 16 * smaller(16, rows);  // floats of a column's sums
  const std::int32_t step = streams.count * wide;
  for (std::int32_t r = 0; r < streams.count; ++r) {
    const std::int32_t first = streams.first + r * streams.apart;
    const float* const bias = args.bias == nullptr ? nullptr : args.bias + first;
    const float* const from = sums + r * wide;
    if (rows <= kNarrow) {
      for (std::int32_t m = 0; m < rows; ++m) {
        float* const to = args.y + std::int64_t{m} * args.shape.N + first;
        for (std::int32_t i = 0; i < streams.apart; ++i)
          to[i] = from[i * step + m] + (bias == nullptr ? 0.0f : bias[i]);
      }
      continue;
    }
    for (std::int32_t i = 0; i < streams.apart; i += 16)
      for (std::int32_t m = 0; m < rows; m += 16)
        write_tile(from + i * step + m, step, bias == nullptr ? nullptr : bias + i, rows - m,
                   smaller(16, streams.apart - i),
                   args.y + std::int64_t{m} * args.shape.N + first + i, args.shape.N, false);
  }
}

void multiply_few(const ProductArgs& args) {
  auto* const sums = reinterpret_cast<float*>(args.scratch);
  const std::int32_t apart = args.columns / kStreams, rest = args.columns % kStreams;
  const auto run = [&](const Streams& streams) {
    switch ((args.shape.rows + 15) / 16) {
      case 1: few_rows<1>(streams, sums); break;
      case 2: few_rows<2>(streams, sums); break;
      case 3: few_rows<3>(streams, sums); break;
      default: few_rows<4>(streams, sums); break;
    }
    write_streams(streams, sums);
  };
  if (apart > 0) run({args, 0, kStreams, apart});
  if (rest > 0) run({args, apart * kStreams, rest, 1});
}

// ---- many rows ----

/// The run of memory that is wanted next, fetched into L2 a few lines at a time: more at once would
/// take all line fill buffers from the tiles.
struct Fetch {
  const std::byte* at;
  std::int64_t line_step;  ///< a line, or a weight row where only a part of it is wanted
  std::int32_t lines;      ///< at a time

  void some() {
    for (std::int32_t i = 0; i < lines; ++i) _mm_prefetch(at + i * line_step, _MM_HINT_T1);
    at += line_step == kLineBytes ? lines * kLineBytes : kLineBytes;
  }
};

/// kPanelRows columns of weights over a part of K.
struct Columns {
  const std::byte* w;
  std::int64_t stride;
  std::int32_t whole;      ///< steps of which all elements are there
  const std::byte* tails;  ///< lines of the step after them; null: there is none
};

/// sums [2 x 16 columns][2 x 16 rows] += columns * a panel of x, or = in the first part of K.
void add_panel(const Columns& columns, const std::byte* x, bool is_first, float* sums,
               Fetch& fetch) {
  if (is_first) {
    KVHIVE_TILE_ZERO(0);
    KVHIVE_TILE_ZERO(1);
    KVHIVE_TILE_ZERO(2);
    KVHIVE_TILE_ZERO(3);
  } else {
    KVHIVE_TILE_LOAD(0, sums, 64);
    KVHIVE_TILE_LOAD(1, sums + 256, 64);
    KVHIVE_TILE_LOAD(2, sums + 512, 64);
    KVHIVE_TILE_LOAD(3, sums + 768, 64);
  }
  const auto add = [&](const std::byte* w, std::int64_t stride) __attribute__((always_inline)) {
    KVHIVE_TILE_LOAD(4, w, stride);
    KVHIVE_TILE_LOAD(6, x, 64);
    KVHIVE_TILE_ADD_PRODUCT(0, 4, 6);
    KVHIVE_TILE_LOAD(7, x + kTileBytes, 64);
    KVHIVE_TILE_ADD_PRODUCT(1, 4, 7);
    KVHIVE_TILE_LOAD(5, w + 16 * stride, stride);
    KVHIVE_TILE_ADD_PRODUCT(2, 5, 6);
    fetch.some();
    KVHIVE_TILE_ADD_PRODUCT(3, 5, 7);
    x += 2 * kTileBytes;
  };
  const std::byte* w = columns.w;
  for (std::int32_t step = 0; step < columns.whole; ++step, w += kLineBytes) add(w, columns.stride);
  if (columns.tails != nullptr) add(columns.tails, kLineBytes);
  KVHIVE_TILE_STORE(0, sums, 64);
  KVHIVE_TILE_STORE(1, sums + 256, 64);
  KVHIVE_TILE_STORE(2, sums + 512, 64);
  KVHIVE_TILE_STORE(3, sums + 768, 64);
}

/// From a copied column to the next: a line more than its elements, so that not all columns fall
/// into the same set of L1.
constexpr std::int64_t kCopiedStride = 2 * kTileBlockDepth + kLineBytes;
static_assert(kPanelRows * kCopiedStride == kTileCopyBytes);

/// Copies columns to whole lines, filled up with zeros, and missing columns as zeros. Tile rows
/// that cross lines are read twice: for many rows the copy is cheaper.
void copy_columns(const Columns& columns, std::int32_t count, std::int32_t depth, std::byte* to) {
  const std::int32_t whole = depth / kStep * kStep;
  const __mmask32 rest = (1u << (depth - whole)) - 1;
  for (std::int32_t i = 0; i < kPanelRows; ++i, to += kCopiedStride) {
    const std::byte* const from = columns.w + i * columns.stride;
    if (i >= count) {
      __builtin_memset(to, 0, static_cast<std::size_t>(2 * (whole + kStep)));
      continue;
    }
    for (std::int32_t k = 0; k < whole; k += kStep)
      _mm512_store_si512(to + 2 * k, _mm512_loadu_si512(from + 2 * k));
    if (rest != 0)
      _mm512_store_si512(to + 2 * whole, _mm512_maskz_loadu_epi16(rest, from + 2 * whole));
  }
}

void write_panel(const ProductArgs& args, std::int32_t first_row, std::int32_t n, const float* sums,
                 bool streams) {
  for (std::int32_t column = 0; column < 2; ++column)
    for (std::int32_t half = 0; half < 2; ++half) {
      const std::int32_t at = n + 16 * column, row = first_row + 16 * half;
      const std::int32_t columns = smaller(16, args.columns - at);
      if (columns <= 0 || row >= args.rows) continue;
      write_tile(sums + (2 * column + half) * 256, 16,
                 args.bias == nullptr ? nullptr : args.bias + at, args.rows - row, columns,
                 args.y + std::int64_t{row} * args.shape.N + at, args.shape.N,
                 streams && columns == 16);
    }
}

void multiply_many(const ProductArgs& args) {
  TileSizes sizes;
  for (int t = 0; t < 8; ++t) {
    sizes.rows[t] = 16;
    sizes.row_bytes[t] = 64;
  }
  KVHIVE_SET_TILE_SIZES(sizes);
  const std::int32_t K = args.shape.K;
  const std::int64_t row = 2 * std::int64_t{K};
  const std::int32_t panels = (args.rows + kPanelRows - 1) / kPanelRows;
  const std::int64_t x_panel = std::int64_t{steps_of(K)} * 2 * kTileBytes;
  const bool streams = reinterpret_cast<std::uintptr_t>(args.y) % 64 == 0 && args.shape.N % 16 == 0;
  std::byte* const copied = args.scratch;
  auto* const all_sums = reinterpret_cast<float*>(args.scratch + kTileCopyBytes);
  alignas(64) std::byte tails[kPanelRows * kLineBytes];
  for (std::int32_t k = 0; k < K; k += kTileBlockDepth) {
    const std::int32_t depth = smaller(kTileBlockDepth, K - k);
    for (std::int32_t n = 0; n < args.columns; n += kPanelRows) {
      float* const sums =
          K > kTileBlockDepth ? all_sums + std::int64_t{n} * kTileBlockRows : all_sums;
      Columns columns{args.w + n * row + 2 * std::int64_t{k}, row, depth / kStep, nullptr};
      const bool has_next = n + 2 * kPanelRows <= args.columns;
      const std::byte* const next = columns.w + (has_next ? kPanelRows * row : 0);
      const std::int32_t count = smaller(kPanelRows, args.columns - n);
      if (count < kPanelRows || reinterpret_cast<std::uintptr_t>(columns.w) % kLineBytes != 0 ||
          row % kLineBytes != 0) {
        copy_columns(columns, count, depth, copied);
        columns.w = copied;
        columns.stride = kCopiedStride;
      }
      if (depth % kStep != 0) {
        copy_tails(columns.w + columns.whole * kLineBytes, columns.stride, kPanelRows,
                   depth % kStep, tails);
        columns.tails = tails;
      }
      Fetch fetch{next, K > kTileBlockDepth ? row : kLineBytes, (kPanelRows + panels - 1) / panels};
      for (std::int32_t p = 0; p < panels; ++p) {
        if (K > kTileBlockDepth) fetch.at = next + std::int64_t{p} * fetch.lines * row;
        add_panel(
            columns,
            args.packed + (args.first_row / kPanelRows + p) * x_panel + k / kStep * 2 * kTileBytes,
            k == 0, sums + p * 1024, fetch);
      }
      if (k + depth == K)
        for (std::int32_t p = 0; p < panels; ++p)
          write_panel(args, p * kPanelRows, n, sums + p * 1024, streams);
    }
  }
  _mm_sfence();
}

void multiply(const ProductArgs& args) {
  if (args.shape.rows <= kFewTileRows)
    multiply_few(args);
  else
    multiply_many(args);
  KVHIVE_RELEASE_TILES();
}

}  // namespace

const TileProductFunctions kTileProduct{pack, multiply};

}  // namespace KVHIVE_INSTRUCTIONS
}  // namespace kvhive
