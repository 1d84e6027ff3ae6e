#pragma once
// Products with weights in codes (quantization/coded_matrix.hpp): a task's weights become values
// in its thread's cache, some columns at a time, and the kernel in use multiplies with these.
//
// So codes are read from memory once, and shared by all processes as the file's other bytes are.
// (The columns of a product are the rows of its matrix.)

#include <cstddef>
#include <cstdint>

#include "models/product/product_kernel.hpp"
#include "models/quantization/coded_matrix.hpp"

namespace kvhive {

/// Has no influence on bits.
struct CodedCut {
  std::int32_t columns = 0;  ///< of a task: their codes are put in order together
  std::int32_t piece = 0;    ///< columns whose values are in the cache together
};

/// \param blocking  the kernel's own, with as many threads
CodedCut coded_cut(const CodedMatrix& weights, Dtype values, std::int32_t rows,
                   const ProductBlocking& blocking, int threads);

/// Bytes of a thread's scratch for codes and values.
std::size_t coded_scratch_bytes(const CodedMatrix& weights, Dtype values, const CodedCut& cut);

/// Computes a task.
///
/// \param task          `w` is not used
/// \param first_column  of the task
/// \param scratch       coded_scratch_bytes(), at a cache line
void multiply_coded(const CodedMatrix& weights, Dtype values, const ProductKernel& kernel,
                    const ProductArgs& task, std::int32_t first_column, const CodedCut& cut,
                    std::byte* scratch);

}  // namespace kvhive
