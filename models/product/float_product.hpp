#pragma once

#include "config/dtype.hpp"
#include "models/product/product_kernel.hpp"

namespace kvhive {

/// By f32 on any CPU. x stays as it is; for bf16 weights it is rounded to bf16, as the other
/// kernels do.
const ProductKernel& float_product(Dtype dtype);

}  // namespace kvhive
