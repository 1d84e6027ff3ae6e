#pragma once
// Products of few rows with weights in codes, by f32: codes become values in registers, and are
// multiplied there, in the order of float_product.cpp. Bits are those of float_product() with the
// values.

#include <cstdint>

#include "config/dtype.hpp"
#include "models/product/product_kernel.hpp"
#include "models/quantization/coded_matrix.hpp"
#include "models/quantization/coded_rows.hpp"

namespace kvhive {

/// With more rows it is faster to write values down before they are multiplied.
std::int32_t most_coded_float_rows();

/// Whether codes of this form are taken: runs of a scale are whole vectors, and values are plain:
/// as denormals are 0 in products, they would be so before they are rounded.
bool takes_coded_float_rows(const CodedMatrix& weights);

/// Computes a task.
///
/// \param codes         of the task's columns
/// \param task          its rows are packed by float_product(values); `w` and `scratch` are not
/// used \param first_column  of the task
void multiply_coded_float_rows(const CodedMatrix& weights, Dtype values, OrderedCodes codes,
                               const ProductArgs& task, std::int32_t first_column);

}  // namespace kvhive
