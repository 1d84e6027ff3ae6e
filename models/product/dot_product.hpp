#pragma once
// The part of dot_product() that is compiled for AVX-512 BF16, or emulated
// (kernels/cpu/instructions/README.md).

#include <cstddef>
#include <cstdint>

#include "models/product/product_kernel.hpp"

namespace kvhive {

/// So many elements of K are added up at a time: 6 rows of so many fit into L1.
inline constexpr std::int32_t kDotBlockDepth = 2048;

struct DotProductFunctions {
  void (*pack)(const PackArgs& args);
  void (*multiply)(const ProductArgs& args);
};

namespace native {
extern const DotProductFunctions kDotProduct;
}
namespace emulated {
extern const DotProductFunctions kDotProduct;  ///< in the library of the tests
}

/// For tests: what dot_product() calls from now on.
void use_dot_product(const DotProductFunctions& functions);

}  // namespace kvhive
