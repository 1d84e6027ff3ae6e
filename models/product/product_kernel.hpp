#pragma once
// Products with weights as they lie in the file. Private to Matmul. One kernel for each arithmetic
// (config/cpu_kernels.hpp) and type of weights.
//
// Each kernel adds over K in one order, whatever the number of rows: a row's bits depend on nothing
// but its x and the weights. So decode, which reads the weights once and as fast as memory gives
// them, and prefill, which multiplies many rows with weights that stay in the caches, may go
// through a matrix in ways of their own.
//
// The rows of x are packed once, for all matrices that they meet. The result is cut into tasks, so
// many rows by so many columns, each of them one thread's.

#include <cstddef>
#include <cstdint>

namespace kvhive {

struct ProductShape {
  std::int32_t rows = 0;  ///< of x and y
  std::int32_t N = 0;
  std::int32_t K = 0;
};

/// How a product is cut; has no influence on bits. What is said of rows follows from their number
/// and K alone, since matrices of several N share packed rows.
struct ProductBlocking {
  std::int32_t packed_rows = 1;  ///< rows that are packed by one call
  std::int32_t rows = 0;         ///< of a task; a multiple of packed_rows, or all
  std::int32_t columns = 0;      ///< of a task
};

struct PackArgs {
  const float* x = nullptr;  ///< [rows, K]
  ProductShape shape;
  std::int32_t first_row = 0;  ///< a multiple of ProductBlocking::packed_rows
  std::byte* packed = nullptr;
};

/// One task.
struct ProductArgs {
  const std::byte* packed = nullptr;  ///< all rows
  const std::byte* w = nullptr;       ///< [columns, K], at any address
  float* y = nullptr;                 ///< the task's first element, shape.N floats from row to row
  const float* bias = nullptr;        ///< [columns]; null: none
  ProductShape shape;                 ///< of the whole product
  std::int32_t first_row = 0;
  std::int32_t rows = 0;
  std::int32_t columns = 0;
  std::byte* scratch = nullptr;  ///< this thread's
};

/// Packed rows and scratch begin at cache lines.
struct ProductKernel {
  ProductBlocking (*blocking)(const ProductShape& shape, int threads);
  std::size_t (*packed_bytes)(const ProductShape& shape);
  void (*pack)(const PackArgs& args);
  std::size_t (*scratch_bytes)(const ProductShape& shape, const ProductBlocking& blocking);
  void (*multiply)(const ProductArgs& args);
  /// Reading weights costs about as much as multiplying this many rows with them.
  std::int64_t reading_rows;
  /// So many multiplications, those of reading_rows included, take about 0.5 ms of one core. With
  /// fewer, only one thread computes: if cores are shared, more threads would lose time, since all
  /// wait for the slowest.
  std::int64_t serial_work;
};

}  // namespace kvhive
