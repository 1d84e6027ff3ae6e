// Compiled for AVX-512 BF16, or emulated.
//
// An element of y is the dot product of two rows that lie alike, so nothing need be packed: decode
// reads the weights once and as fast as memory gives them, and the same loop with more rows per
// register tile does prefill; for many rows over a copy in which four columns are one run. The
// order of additions follows from K alone: as many sums as a vector has lanes over every
// kDotBlockDepth elements, folded, then the next.

#include "models/product/dot_product.hpp"

#include "kernels/cpu/instructions/denormals.hpp"
#include "kernels/cpu/instructions/vectors.hpp"

namespace kvhive {
namespace KVHIVE_INSTRUCTIONS {
namespace {

constexpr std::int32_t kStep = 32;  ///< bf16 in a vector
constexpr std::int32_t kBlockDepth = kDotBlockDepth;
constexpr std::int32_t kRowsAtOnce = 6;    ///< times 4 columns: 24 of 32 registers are sums
constexpr std::int32_t kPackingRows = 24;  ///< more rows are worth packing the weights for

/// One task (ProductArgs), its rows of x being bf16.
struct Task {
  const std::uint16_t* x;  ///< [rows, K]
  const std::byte* w;
  float* y;
  const float* bias;
  std::int64_t y_stride;
  std::int32_t rows, columns, K;
  std::byte* scratch;
};

/// How the weights of four columns lie: each column in a run of its own, as in the file, or packed,
/// 32 elements of each in turn.
enum class Weights { in_file, packed };

/// Bytes from an element of a column to the next, counted over whole vectors.
constexpr std::int64_t element_step(Weights weights) { return weights == Weights::packed ? 8 : 2; }

std::int32_t smaller(std::int32_t a, std::int32_t b) { return a < b ? a : b; }

__m512bh load(const void* from) { return (__m512bh)_mm512_loadu_si512(from); }
__m512bh load_some(const void* from, __mmask32 lanes) {
  return (__m512bh)_mm512_maskz_loadu_epi16(lanes, from);
}

/// The sums of the lanes of four vectors.
__m128 folded(__m512 a, __m512 b, __m512 c, __m512 d) {
  const __m512 ac = _mm512_add_ps(_mm512_unpacklo_ps(a, c), _mm512_unpackhi_ps(a, c));
  const __m512 bd = _mm512_add_ps(_mm512_unpacklo_ps(b, d), _mm512_unpackhi_ps(b, d));
  const __m512 all = _mm512_add_ps(_mm512_unpacklo_ps(ac, bd), _mm512_unpackhi_ps(ac, bd));
  const __m256 half = _mm256_add_ps(_mm512_castps512_ps256(all), _mm512_extractf32x8_ps(all, 1));
  return _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
}

/// sums[row] = x[row] . w[0..3] over `depth` elements, for kRows rows.
template <int kRows, Weights kWeights>
void dot_tile(const std::uint16_t* x, std::int64_t x_stride, const std::byte* const* w,
              std::int32_t depth, __m128* sums) {
  __m512 dots[kRows][4];
#pragma GCC unroll 6
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) dots[r][j] = _mm512_setzero_ps();

  const std::byte *w0 = w[0], *w1 = w[1], *w2 = w[2], *w3 = w[3];
  constexpr std::int64_t kElement = element_step(kWeights);
  constexpr std::int64_t kAhead = 2048;  // bytes; from L2 into L1
  std::int32_t k = 0;
  for (; k + kStep <= depth; k += kStep) {
    const std::int64_t at = k * kElement;
    if constexpr (kWeights == Weights::packed) {
      _mm_prefetch(w0 + at + kAhead, _MM_HINT_T0);
      _mm_prefetch(w1 + at + kAhead, _MM_HINT_T0);
      _mm_prefetch(w2 + at + kAhead, _MM_HINT_T0);
      _mm_prefetch(w3 + at + kAhead, _MM_HINT_T0);
    }
    const __m512bh columns[4] = {load(w0 + at), load(w1 + at), load(w2 + at), load(w3 + at)};
#pragma GCC unroll 6
    for (int r = 0; r < kRows; ++r) {
      const __m512bh row = load(x + r * x_stride + k);
#pragma GCC unroll 4
      for (int j = 0; j < 4; ++j) dots[r][j] = _mm512_dpbf16_ps(dots[r][j], columns[j], row);
    }
  }
  if (k < depth) {
    const __mmask32 lanes = 0xffffffffu >> (kStep - (depth - k));
    const std::int64_t at = k * kElement;
    const __m512bh columns[4] = {load_some(w0 + at, lanes), load_some(w1 + at, lanes),
                                 load_some(w2 + at, lanes), load_some(w3 + at, lanes)};
#pragma GCC unroll 6
    for (int r = 0; r < kRows; ++r) {
      const __m512bh row = load_some(x + r * x_stride + k, lanes);
#pragma GCC unroll 4
      for (int j = 0; j < 4; ++j) dots[r][j] = _mm512_dpbf16_ps(dots[r][j], columns[j], row);
    }
  }
#pragma GCC unroll 6
  for (int r = 0; r < kRows; ++r) sums[r] = folded(dots[r][0], dots[r][1], dots[r][2], dots[r][3]);
}

template <Weights kWeights>
void dot_rows(std::int32_t rows, const std::uint16_t* x, std::int64_t x_stride,
              const std::byte* const* w, std::int32_t depth, __m128* sums) {
  switch (rows) {
    case 1: return dot_tile<1, kWeights>(x, x_stride, w, depth, sums);
    case 2: return dot_tile<2, kWeights>(x, x_stride, w, depth, sums);
    case 3: return dot_tile<3, kWeights>(x, x_stride, w, depth, sums);
    case 4: return dot_tile<4, kWeights>(x, x_stride, w, depth, sums);
    case 5: return dot_tile<5, kWeights>(x, x_stride, w, depth, sums);
    default: return dot_tile<6, kWeights>(x, x_stride, w, depth, sums);
  }
}

/// Four columns, `apart` columns from each other.
struct Quad {
  Quad(const Task& args, std::int32_t first, std::int32_t apart) {
    for (std::int32_t j = 0; j < 4; ++j) {
      const std::int32_t n = first + j * apart;
      column[j] = n < args.columns ? n : -1;
      w[j] = args.w + 2 * std::int64_t{args.K} * (n < args.columns ? n : first);
    }
    adjoin = apart == 1 && column[3] >= 0;
  }

  std::int32_t column[4];  ///< -1: there is none
  const std::byte* w[4];
  bool adjoin;  ///< all four are there, side by side
};

/// Up to kRowsAtOnce rows times a quad over one block of K.
///
/// \param w  of the four columns, from element k on
template <Weights kWeights>
void add_block(const Task& args, const Quad& quad, std::int32_t first_row, std::int32_t k,
               const std::byte* const* w) {
  const std::int32_t rows = smaller(kRowsAtOnce, args.rows - first_row);
  __m128 sums[kRowsAtOnce];
  dot_rows<kWeights>(rows, args.x + std::int64_t{first_row} * args.K + k, args.K, w,
                     smaller(kBlockDepth, args.K - k), sums);
  const bool is_last = k + kBlockDepth >= args.K;
  for (std::int32_t r = 0; r < rows; ++r) {
    float* y = args.y + (first_row + r) * args.y_stride;
    if (quad.adjoin) {
      float* to = y + quad.column[0];
      __m128 sum = sums[r];
      if (k > 0) sum = _mm_add_ps(sum, _mm_loadu_ps(to));
      if (is_last && args.bias != nullptr)
        sum = _mm_add_ps(sum, _mm_loadu_ps(args.bias + quad.column[0]));
      _mm_storeu_ps(to, sum);
      continue;
    }
    for (std::int32_t j = 0; j < 4; ++j) {
      const std::int32_t n = quad.column[j];
      if (n < 0) continue;
      float sum = sums[r][j];
      if (k > 0) sum += y[n];
      if (is_last && args.bias != nullptr) sum += args.bias[n];
      y[n] = sum;
    }
  }
}

void add_in_file(const Task& args, const Quad& quad, std::int32_t first_row, std::int32_t k) {
  const std::byte* w[4] = {quad.w[0] + 2 * k, quad.w[1] + 2 * k, quad.w[2] + 2 * k,
                           quad.w[3] + 2 * k};
  add_block<Weights::in_file>(args, quad, first_row, k, w);
}

/// Where the weights of four columns are packed.
std::byte* packed_quad(const Task& args, std::int32_t i) {
  const std::int32_t depth = (smaller(kBlockDepth, args.K) + kStep - 1) / kStep * kStep;
  return args.scratch + std::int64_t{i} * depth * element_step(Weights::packed);
}

void add_packed(const Task& args, const Quad& quad, std::int32_t i, std::int32_t first_row,
                std::int32_t k) {
  const std::byte* packed = packed_quad(args, i);
  const std::byte* w[4] = {packed, packed + 64, packed + 128, packed + 192};
  add_block<Weights::packed>(args, quad, first_row, k, w);
}

/// Makes one run of memory of each quad over one block of K.
void pack_weights(const Task& args, std::int32_t k) {
  const std::int32_t depth = smaller(kBlockDepth, args.K - k);
  for (std::int32_t i = 0; 4 * i < args.columns; ++i) {
    const Quad quad(args, 4 * i, 1);
    std::byte* to = packed_quad(args, i);
    for (std::int32_t d = 0; d < depth; d += kStep)
      for (std::int32_t j = 0; j < 4; ++j, to += 64) {
        const __mmask32 lanes = d + kStep <= depth ? ~0u : 0xffffffffu >> (kStep - (depth - d));
        _mm512_storeu_si512(to, _mm512_maskz_loadu_epi16(lanes, quad.w[j] + 2 * (k + d)));
      }
  }
}

/// Fetches the part-th of `parts` parts of the x and y of the rows from `first_row` on.
void fetch_part(const Task& args, std::int32_t first_row, std::int32_t k, std::int32_t part,
                std::int32_t parts) {
  const std::int32_t end = smaller(first_row + kRowsAtOnce, args.rows);
  const std::int32_t bytes = 2 * smaller(kBlockDepth, args.K - k);
  const std::int32_t step = (bytes / parts + 63) / 64 * 64;
  for (std::int32_t row = first_row; row < end; ++row) {
    const auto* x = reinterpret_cast<const char*>(args.x + std::int64_t{row} * args.K + k);
    for (std::int32_t at = part * step; at < smaller((part + 1) * step, bytes); at += 64)
      _mm_prefetch(x + at, _MM_HINT_T1);
    if (part % 4 == 0) _mm_prefetch(args.y + row * args.y_stride + 4 * part, _MM_HINT_T0);
  }
}

/// Rounds a row.
void pack(const PackArgs& args) {
  const std::int64_t count = args.shape.K, first = std::int64_t{args.first_row} * count;
  const float* const x = args.x + first;
  auto* const out = reinterpret_cast<std::uint16_t*>(args.packed) + first;
  for (std::int64_t i = 0; i < count; i += 16) {
    const std::int64_t rest = count - i;
    const __mmask16 lanes = rest >= 16 ? 0xffff : static_cast<__mmask16>((1u << rest) - 1);
    _mm256_mask_storeu_epi16(out + i, lanes,
                             (__m256i)_mm512_cvtneps_pbh(_mm512_maskz_loadu_ps(lanes, x + i)));
  }
}

void multiply_task(const Task& args) {
  const std::int32_t quads = (args.columns + 3) / 4;
  if (args.rows <= kRowsAtOnce) {
    // Weights are read once: four long runs of memory side by side.
    for (std::int32_t i = 0; i < quads; ++i) {
      const Quad quad(args, i, quads);
      for (std::int32_t k = 0; k < args.K; k += kBlockDepth) add_in_file(args, quad, 0, k);
    }
    return;
  }
  // A few rows of x stay in L1 while the weights pass by in L2; the next rows are fetched
  // meanwhile.
  const bool packs = args.rows > kPackingRows;
  for (std::int32_t k = 0; k < args.K; k += kBlockDepth) {
    if (packs) pack_weights(args, k);
    for (std::int32_t row = 0; row < args.rows; row += kRowsAtOnce)
      for (std::int32_t i = 0; i < quads; ++i) {
        const Quad quad(args, 4 * i, 1);
        fetch_part(args, row + kRowsAtOnce, k, i, quads);
        if (packs)
          add_packed(args, quad, i, row, k);
        else
          add_in_file(args, quad, row, k);
      }
  }
}

void multiply(const ProductArgs& args) {
  const WithoutDenormals none;
  const std::int64_t K = args.shape.K;
  multiply_task({reinterpret_cast<const std::uint16_t*>(args.packed) + args.first_row * K, args.w,
                 args.y, args.bias, args.shape.N, args.rows, args.columns, args.shape.K,
                 args.scratch});
}

}  // namespace

const DotProductFunctions kDotProduct{pack, multiply};

}  // namespace KVHIVE_INSTRUCTIONS
}  // namespace kvhive
