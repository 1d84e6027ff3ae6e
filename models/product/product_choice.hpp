#pragma once
// Which kernel multiplies.

#include "config/dtype.hpp"
#include "models/product/product_kernel.hpp"

namespace kvhive {

/// The kernel of the arithmetic in use (kernels/cpu/instructions/cpu_kernels.hpp).
///
/// \param dtype  of the weights: bf16, f16 or f32
const ProductKernel& product_kernel(Dtype dtype);

/// Whether float_product() has the bits of that kernel.
bool has_bits_of_floats(Dtype dtype);

}  // namespace kvhive
