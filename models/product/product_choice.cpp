#include "models/product/product_choice.hpp"

#include <algorithm>

#include "base/check.hpp"
#include "kernels/cpu/instructions/cpu_features.hpp"
#include "kernels/cpu/instructions/cpu_kernels.hpp"
#include "kernels/cpu/instructions/dot_way.hpp"
#include "models/product/dot_product.hpp"
#include "models/product/float_product.hpp"
#include "models/product/tile_product.hpp"

namespace kvhive {
namespace {

constexpr std::int32_t kColumnGroup = 32;  ///< no kernel takes more columns at a time

std::int32_t round_up(std::int64_t value, std::int32_t to) {
  return static_cast<std::int32_t>((value + to - 1) / to * to);
}

/// Columns of a task: at most `most_bytes` of weights, and several tasks for each thread.
std::int32_t task_columns(const ProductShape& shape, std::int32_t depth, std::int64_t most_bytes,
                          int threads) {
  constexpr std::int64_t kTasksPerThread = 4;
  const std::int64_t fitting = most_bytes / (2 * std::min(shape.K, depth));
  const std::int64_t even = shape.N / (kTasksPerThread * threads);
  return round_up(std::clamp<std::int64_t>(std::min(fitting, even), 1, shape.N), kColumnGroup);
}

// ---- tiles ----

TileProductFunctions& tile_functions() {
  static TileProductFunctions functions = native::kTileProduct;
  return functions;
}

bool has_few_rows(const ProductShape& shape) { return shape.rows <= kFewTileRows; }

ProductBlocking tile_blocking(const ProductShape& shape, int threads) {
  if (has_few_rows(shape)) return {16, shape.rows, task_columns(shape, shape.K, 1 << 20, threads)};
  return {32, kTileBlockRows, std::min(256, round_up(shape.N, kColumnGroup))};
}

std::size_t tile_packed_bytes(const ProductShape& shape) {
  const std::size_t rows = has_few_rows(shape) && shape.rows <= 16
                               ? std::size_t(shape.rows)
                               : std::size_t(round_up(shape.rows, has_few_rows(shape) ? 16 : 32));
  return rows * std::size_t(round_up(shape.K, 32)) * 2;
}

std::size_t tile_scratch_bytes(const ProductShape& shape, const ProductBlocking& blocking) {
  const std::size_t columns = std::size_t(round_up(blocking.columns, kColumnGroup));
  // Sums are loaded 16 at a time, whatever the number of rows: 64 bytes more.
  if (has_few_rows(shape)) return columns * std::size_t(round_up(shape.rows, 16)) * 4 + 64;
  return kTileCopyBytes + columns * std::size_t{kTileBlockRows} * 4;
}

// ---- dot products ----

DotProductFunctions& dot_functions() {
  static DotProductFunctions functions = native::kDotProduct;
  return functions;
}

ProductBlocking dot_blocking(const ProductShape& shape, int threads) {
  return {1, shape.rows, task_columns(shape, kDotBlockDepth, 512 << 10, threads)};
}

std::size_t dot_packed_bytes(const ProductShape& shape) {
  return std::size_t(shape.rows) * std::size_t(shape.K) * 2;
}

std::size_t dot_scratch_bytes(const ProductShape& shape, const ProductBlocking& blocking) {
  const std::size_t depth = std::size_t(round_up(std::min(shape.K, kDotBlockDepth), 32));
  return std::size_t(round_up(blocking.columns, 4)) * depth * 2;
}

const ProductKernel& tile_product() {
  static const ProductKernel kernel{
      tile_blocking,
      tile_packed_bytes,
      [](const PackArgs& args) { tile_functions().pack(args); },
      tile_scratch_bytes,
      [](const ProductArgs& args) { tile_functions().multiply(args); },
      64,
      1 << 26};
  return kernel;
}

const ProductKernel& dot_product() {
  static const ProductKernel kernel{dot_blocking,
                                    dot_packed_bytes,
                                    [](const PackArgs& args) { dot_functions().pack(args); },
                                    dot_scratch_bytes,
                                    [](const ProductArgs& args) { dot_functions().multiply(args); },
                                    8,
                                    1 << 26};
  return kernel;
}

}  // namespace

void use_tile_product(const TileProductFunctions& functions) { tile_functions() = functions; }
void use_dot_product(const DotProductFunctions& functions) { dot_functions() = functions; }

const ProductKernel& product_kernel(Dtype dtype) {
  if (dtype != Dtype::bf16) return float_product(dtype);
  switch (cpu_kernels()) {
    case CpuKernels::amx: return tile_product();
    case CpuKernels::avx512_bf16:
      return dot_way().way == DotWay::instruction ? dot_product() : float_product(dtype);
    default: return float_product(dtype);
  }
}

bool has_bits_of_floats(Dtype dtype) {
  if (dtype != Dtype::bf16) return true;
  switch (cpu_kernels()) {
    case CpuKernels::amx: return false;
    case CpuKernels::avx512_bf16: return cpu_features().avx512;  // emulated, vectors are narrower
    default: return true;
  }
}

}  // namespace kvhive
