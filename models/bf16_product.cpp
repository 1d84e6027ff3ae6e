// Compiled for AVX-512 BF16 and called only where the CPU has it; hence no inline function of the
// standard library, whose copy other CPUs might get.

#include "models/bf16_product.hpp"

#include <immintrin.h>

namespace kvhive {
namespace {

constexpr std::int32_t kStep = 32;          ///< bf16 in a vector
constexpr std::int32_t kBlockDepth = 2048;  ///< of K; 6 rows of so many fit into L1
constexpr std::int32_t kRowsAtOnce = 6;     ///< times 4 columns: 24 of 32 registers are sums

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
template <int kRows>
void dot_tile(const std::uint16_t* x, std::int64_t x_stride, const std::byte* const* w,
              std::int32_t depth, __m128* sums) {
  __m512 dots[kRows][4];
#pragma GCC unroll 6
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) dots[r][j] = _mm512_setzero_ps();

  const std::byte *w0 = w[0], *w1 = w[1], *w2 = w[2], *w3 = w[3];
  std::int32_t k = 0;
  for (; k + kStep <= depth; k += kStep) {
    const __m512bh columns[4] = {load(w0 + 2 * k), load(w1 + 2 * k), load(w2 + 2 * k),
                                 load(w3 + 2 * k)};
#pragma GCC unroll 6
    for (int r = 0; r < kRows; ++r) {
      const __m512bh row = load(x + r * x_stride + k);
#pragma GCC unroll 4
      for (int j = 0; j < 4; ++j) dots[r][j] = _mm512_dpbf16_ps(dots[r][j], columns[j], row);
    }
  }
  if (k < depth) {
    const __mmask32 lanes = 0xffffffffu >> (kStep - (depth - k));
    const __m512bh columns[4] = {load_some(w0 + 2 * k, lanes), load_some(w1 + 2 * k, lanes),
                                 load_some(w2 + 2 * k, lanes), load_some(w3 + 2 * k, lanes)};
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

void dot_rows(std::int32_t rows, const std::uint16_t* x, std::int64_t x_stride,
              const std::byte* const* w, std::int32_t depth, __m128* sums) {
  switch (rows) {
    case 1: return dot_tile<1>(x, x_stride, w, depth, sums);
    case 2: return dot_tile<2>(x, x_stride, w, depth, sums);
    case 3: return dot_tile<3>(x, x_stride, w, depth, sums);
    case 4: return dot_tile<4>(x, x_stride, w, depth, sums);
    case 5: return dot_tile<5>(x, x_stride, w, depth, sums);
    default: return dot_tile<6>(x, x_stride, w, depth, sums);
  }
}

/// Four columns, `apart` columns from each other.
struct Quad {
  Quad(const Bf16ProductArgs& args, std::int32_t first, std::int32_t apart) {
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
void add_block(const Bf16ProductArgs& args, const Quad& quad, std::int32_t first_row,
               std::int32_t k) {
  const std::int32_t rows = smaller(kRowsAtOnce, args.rows - first_row);
  const std::byte* w[4] = {quad.w[0] + 2 * k, quad.w[1] + 2 * k, quad.w[2] + 2 * k,
                           quad.w[3] + 2 * k};
  __m128 sums[kRowsAtOnce];
  dot_rows(rows, args.x + std::int64_t{first_row} * args.K + k, args.K, w,
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

/// Fetches the part-th of `parts` parts of the x and y of the rows from `first_row` on.
void fetch_part(const Bf16ProductArgs& args, std::int32_t first_row, std::int32_t k,
                std::int32_t part, std::int32_t parts) {
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

}  // namespace

void round_to_bf16(const float* x, std::int64_t count, std::uint16_t* out) {
  for (std::int64_t i = 0; i < count; i += 16) {
    const std::int64_t rest = count - i;
    const __mmask16 lanes = rest >= 16 ? 0xffff : static_cast<__mmask16>((1u << rest) - 1);
    _mm256_mask_storeu_epi16(out + i, lanes,
                             (__m256i)_mm512_cvtneps_pbh(_mm512_maskz_loadu_ps(lanes, x + i)));
  }
}

void bf16_product(const Bf16ProductArgs& args) {
  const std::int32_t quads = (args.columns + 3) / 4;
  if (args.rows <= kRowsAtOnce) {
    // Weights are read once: four long runs of memory side by side.
    for (std::int32_t i = 0; i < quads; ++i) {
      const Quad quad(args, i, quads);
      for (std::int32_t k = 0; k < args.K; k += kBlockDepth) add_block(args, quad, 0, k);
    }
    return;
  }
  // A few rows of x stay in L1 while the weights pass by in L2; the next rows are fetched
  // meanwhile.
  for (std::int32_t k = 0; k < args.K; k += kBlockDepth)
    for (std::int32_t row = 0; row < args.rows; row += kRowsAtOnce)
      for (std::int32_t i = 0; i < quads; ++i) {
        fetch_part(args, row + kRowsAtOnce, k, i, quads);
        add_block(args, Quad(args, 4 * i, 1), row, k);
      }
}

}  // namespace kvhive
