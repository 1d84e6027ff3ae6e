#pragma once
// Products with weights in codes (quantization/coded_matrix.hpp). Codes are read from memory once,
// and shared by all processes as the file's other bytes are. For few rows they become values in
// registers, where the arithmetic in use is that of floats (coded_float_product.hpp). Else a task's
// weights become values in its thread's cache, some columns at a time, and the kernel in use
// multiplies with these.
//
// (The columns of a product are the rows of its matrix.)

#include <cstddef>
#include <cstdint>

#include "models/product/product_kernel.hpp"
#include "models/quantization/coded_matrix.hpp"

namespace kvhive {

struct CodedWeights {
  /// \param values_dtype  bf16 or f32
  CodedWeights(CodedMatrix codes, Dtype values_dtype);

  CodedMatrix matrix;
  Dtype values;
  bool fits_registers;  ///< takes_coded_float_rows()
};

/// How a product is computed; has no influence on bits.
struct CodedWay {
  const ProductKernel* kernel = nullptr;
  bool is_in_registers = false;
  std::int32_t piece = 0;  ///< columns whose values are in the cache together

  static CodedWay of(const CodedWeights& weights, std::int32_t rows);
  /// The kernel's blocking, with columns for tasks whose codes are put in order together.
  ProductBlocking cut(const CodedWeights& weights, const ProductShape& shape, int threads);
  /// Bytes of a thread's scratch for codes and values.
  std::size_t scratch_bytes(const CodedWeights& weights, const ProductBlocking& blocking) const;
  /// Computes a task.
  ///
  /// \param task          `w` is not used
  /// \param first_column  of the task
  /// \param scratch       scratch_bytes(), at a cache line
  void multiply(const CodedWeights& weights, const ProductArgs& task, std::int32_t first_column,
                std::byte* scratch) const;
};

}  // namespace kvhive
