#include "models/product/matmul.hpp"

#include <omp.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <mutex>

#include "base/check.hpp"
#include "base/cpu_features.hpp"
#include "models/product/bf16_product.hpp"
#include "models/product/matmul_shape.hpp"

namespace kvhive {
namespace {

/// Columns of a slab for oneDNN: enough that packing and the call take little time compared with
/// the work, and few enough that a small matrix can be distributed over threads.
constexpr std::int32_t kSlabColumns = 256;

/// With fewer multiplications than this (about 0.5 ms of one core), only one thread computes. If
/// cores are shared, more threads would lose time, since all wait for the slowest thread.
constexpr std::int64_t kSerialWork = std::int64_t{1} << 26;

/// Packing a slab's weights costs about as much as multiplying this many rows.
constexpr std::int64_t kPackingRows = 16;

/// A kernel of kvhive's own for bf16 weights as they lie in the file.
struct Bf16Kernel {
  void (*product)(const Bf16ProductArgs&);
  void (*round)(const float* x, std::int64_t count, std::uint16_t* out);
  /// Bytes of weights per call: as many as stay in the L2 cache while the rows are multiplied with
  /// them. If K is larger than kBf16ProductDepth, it takes so many elements of K at a time.
  std::int32_t slab_bytes;
  /// Reading a slab's weights costs about as much as multiplying this many rows.
  std::int64_t reading_rows;
};

void round_on_any_cpu(const float* x, std::int64_t count, std::uint16_t* out) {
  std::transform(x, x + count, out, bf16_of_float);
}

constexpr Bf16Kernel kByDots{bf16_product, round_to_bf16, 512 << 10, 8};
constexpr Bf16Kernel kByFloats{bf16_float_product, round_on_any_cpu, 256 << 10, 2};

struct alignas(64) CacheLine {
  std::byte bytes[64];
};

/// The kernel for weights of this type; null = oneDNN. That is so on a CPU with AMX: there oneDNN
/// is several times faster at prefill, and decode has to use the same kernel, because a row's bits
/// must not depend on the number of rows. From AVX-512 on oneDNN has bf16, if only by f32.
const Bf16Kernel* own_kernel(Dtype dtype) {
  const CpuFeatures& cpu = cpu_features();
  if (dtype != Dtype::bf16 || cpu.amx_bf16) return nullptr;
  if (cpu.avx512_bf16) return &kByDots;
  return cpu.avx512 ? nullptr : &kByFloats;
}

std::vector<std::byte> floats_of_f16(std::span<const std::byte> bytes) {
  std::vector<std::byte> values(2 * bytes.size());
  for (std::size_t i = 0; i < bytes.size() / 2; ++i) {
    std::uint16_t half;
    std::memcpy(&half, &bytes[2 * i], sizeof half);
    const float value = float_of_f16(half);
    std::memcpy(&values[4 * i], &value, sizeof value);
  }
  return values;
}

MatmulWeights with_bytes(MatmulWeights weights, std::span<const std::byte> bytes) {
  weights.bytes = bytes;
  return weights;
}

/// The next tile for `rows` rows: the smallest that takes them all if at most half of it is
/// padding, else the largest that they fill. `tiles` is ascending and not empty.
const TileMatmul& next_tile(const std::vector<TileMatmul>& tiles, std::int32_t rows) {
  const auto fits = std::ranges::lower_bound(tiles, rows, {}, &TileMatmul::tile);
  if (fits == tiles.begin()) return *fits;
  const bool mostly_full = fits != tiles.end() && 2 * rows >= fits->tile();
  return mostly_full ? *fits : *std::prev(fits);
}

/// Returns x in the weights' dtype, with rows of zeros appended up to `padded_size` values.
std::span<const std::byte> padded_rows(std::span<const float> x, std::size_t padded_size,
                                       Dtype dtype) {
  thread_local std::vector<std::byte> buffer;
  const std::size_t bytes = padded_size * bytes_of(dtype);
  if (buffer.size() < bytes) buffer.resize(bytes);
  if (dtype == Dtype::bf16) {
    auto* narrow = reinterpret_cast<std::uint16_t*>(buffer.data());
    std::ranges::transform(x, narrow, bf16_of_float);
  } else {
    std::memcpy(buffer.data(), x.data(), x.size_bytes());
  }
  const std::size_t used = x.size() * bytes_of(dtype);
  std::memset(buffer.data() + used, 0, bytes - used);
  return {buffer.data(), bytes};
}

}  // namespace

/// The slabs for oneDNN, made when they are first needed: its primitives take milliseconds per
/// shape, and kvhive's own kernels do not need them.
struct Matmul::LazySlabs {
  std::once_flag made;
  std::vector<Slab> all;
};

Matmul::Matmul(MatmulWeights weights, std::vector<std::byte> owned, std::vector<float> bias)
    : Matmul(with_bytes(weights, owned), std::move(bias)) {
  if (owned_.empty()) owned_ = std::move(owned);  // else f16, and converted
}

Matmul::Matmul(const MatmulWeights& weights, std::vector<float> bias)
    : weights_(weights), bias_(std::move(bias)) {
  KV_CHECK(weights.N > 0 && weights.K > 0, weights.N, weights.K);
  KV_CHECK(weights.bytes.size() == std::size_t(weights.N) * weights.K * bytes_of(weights.dtype));
  KV_CHECK(bias_.empty() || bias_.size() == std::size_t(weights.N), bias_.size(), weights.N);
  if (weights.dtype == Dtype::f16) {
    owned_ = floats_of_f16(weights.bytes);
    weights_.dtype = Dtype::f32;
    weights_.bytes = owned_;
  }
  slabs_ = std::make_shared<LazySlabs>();
  if (own_kernel(weights_.dtype) == nullptr) slabs();
}

const std::vector<Matmul::Slab>& Matmul::slabs() const {
  std::call_once(slabs_->made, [this] {
    for (std::int32_t first = 0; first < weights_.N; first += kSlabColumns) {
      const std::int32_t columns = std::min(kSlabColumns, weights_.N - first);
      slabs_->all.push_back(
          {first, matmul_shape(columns, weights_.K, weights_.dtype, slab_weights(first))});
    }
  });
  return slabs_->all;
}

const std::byte* Matmul::slab_weights(std::int32_t first_column) const {
  return weights_.bytes.data() + std::size_t(first_column) * weights_.K * bytes_of(weights_.dtype);
}

/// Lists the products slab by slab, so that a slab's weights are still in the cache for its next
/// tile.
std::vector<Matmul::Product> Matmul::products(std::int32_t rows) const {
  std::vector<Product> products;
  for (const Slab& slab : slabs())
    for (std::int32_t row = 0; row < rows; row += products.back().tile->tile())
      products.push_back({&slab, &next_tile(slab.shape->tiles, rows - row), row});
  return products;
}

void Matmul::run(const Product& product, std::int32_t rows, const std::byte* x, float* y) const {
  const auto [slab, tile, first_row] = product;
  const std::int32_t columns = slab->shape->columns;
  thread_local std::vector<float> result;
  const std::size_t result_size = std::size_t(tile->tile()) * columns;
  if (result.size() < result_size) result.resize(result_size);
  tile->run(x + std::size_t(first_row) * weights_.K * bytes_of(weights_.dtype),
            slab_weights(slab->first), result.data());

  const std::int32_t last_row = std::min(rows, first_row + tile->tile());
  const float* from = result.data();
  for (std::int32_t row = first_row; row < last_row; ++row, from += columns) {
    float* to = y + std::size_t(row) * weights_.N + slab->first;
    if (bias_.empty())
      std::memcpy(to, from, columns * sizeof(float));
    else
      std::transform(from, from + columns, &bias_[slab->first], to, std::plus<>());
  }
}

std::int32_t Matmul::checked_rows(std::span<const float> x, std::span<float> y) const {
  KV_CHECK(x.size() % weights_.K == 0, x.size(), weights_.K);
  const auto rows = static_cast<std::int32_t>(x.size() / weights_.K);
  KV_CHECK(y.size() == std::size_t(rows) * weights_.N, y.size(), rows, weights_.N);
  return rows;
}

void Matmul::apply(std::span<const float> x, std::span<float> y) const {
  if (own_kernel(weights_.dtype) == nullptr) return apply_with_onednn(x, y);
  if (const std::int32_t rows = checked_rows(x, y); rows > 0) apply_in_place(x, rows, y);
}

/// By a kernel of kvhive's own: the weights are not packed beforehand.
void Matmul::apply_in_place(std::span<const float> x, std::int32_t rows, std::span<float> y) const {
  const Bf16Kernel& kernel = *own_kernel(weights_.dtype);
  thread_local std::vector<CacheLine> narrow;
  const std::size_t narrow_lines = (x.size_bytes() / 2 + sizeof(CacheLine) - 1) / sizeof(CacheLine);
  if (narrow.size() < narrow_lines) narrow.resize(narrow_lines);
  auto* const rounded = reinterpret_cast<std::uint16_t*>(narrow.data());

  const std::int32_t columns =
      std::max(4, kernel.slab_bytes / (2 * std::min(weights_.K, kBf16ProductDepth)) / 4 * 4);
  const std::int32_t slabs = (weights_.N + columns - 1) / columns;
  const std::int64_t multiplications = (rows + kernel.reading_rows) * weights_.N * weights_.K;
  const int threads = multiplications < kSerialWork || slabs == 1 ? 1 : omp_get_max_threads();
#pragma omp parallel num_threads(threads)
  {
#pragma omp for schedule(static)
    for (std::int32_t row = 0; row < rows; ++row)
      kernel.round(&x[std::size_t(row) * weights_.K], weights_.K,
                   rounded + std::size_t(row) * weights_.K);
    thread_local std::vector<CacheLine> scratch;
    const std::size_t lines = bf16_product_scratch(columns, weights_.K) / sizeof(CacheLine);
    if (scratch.size() < lines) scratch.resize(lines);
#pragma omp for schedule(dynamic) nowait
    for (std::int32_t slab = 0; slab < slabs; ++slab) {
      const std::int32_t first = slab * columns;
      kernel.product({.x = rounded,
                      .w = slab_weights(first),
                      .y = y.data() + first,
                      .bias = bias_.empty() ? nullptr : &bias_[first],
                      .y_stride = weights_.N,
                      .rows = rows,
                      .columns = std::min(columns, weights_.N - first),
                      .K = weights_.K,
                      .scratch = scratch.data()->bytes});
    }
  }
}

void Matmul::apply_with_onednn(std::span<const float> x, std::span<float> y) const {
  const std::int32_t rows = checked_rows(x, y);
  if (rows == 0) return;
  const auto work = products(rows);
  std::int32_t padded_height = 0;
  for (const auto& product : work)
    padded_height = std::max(padded_height, product.first_row + product.tile->tile());
  const std::byte* padded =
      padded_rows(x, std::size_t(padded_height) * weights_.K, weights_.dtype).data();

  const std::int64_t multiplications = (rows + kPackingRows) * weights_.N * weights_.K;
  const bool serial = multiplications < kSerialWork || work.size() == 1;
  const int threads = serial ? 1 : omp_get_max_threads();
#pragma omp parallel for schedule(dynamic) num_threads(threads)
  for (std::size_t i = 0; i < work.size(); ++i) run(work[i], rows, padded, y.data());
}

}  // namespace kvhive
