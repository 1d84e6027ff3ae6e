#pragma once
// The part of tile_product() that is compiled for AMX and AVX-512 BF16, or emulated
// (kernels/cpu/instructions/README.md).

#include <cstddef>
#include <cstdint>

#include "models/product/product_kernel.hpp"

namespace kvhive {

/// Up to so many rows, weights are read as fast as memory gives them; the rows are packed in
/// another order than more rows are.
inline constexpr std::int32_t kFewTileRows = 64;
/// Rows, and elements of K, of the panels of x that stay in L2 while many rows are multiplied.
inline constexpr std::int32_t kTileBlockRows = 256;
inline constexpr std::int32_t kTileBlockDepth = 2048;
/// Scratch for weights that do not lie at whole cache lines; sums follow.
inline constexpr std::size_t kTileCopyBytes = 32 * (2 * kTileBlockDepth + 64);

struct TileProductFunctions {
  void (*pack)(const PackArgs& args);
  void (*multiply)(const ProductArgs& args);
};

namespace native {
extern const TileProductFunctions kTileProduct;
}
namespace emulated {
extern const TileProductFunctions kTileProduct;  ///< in the library of the tests
}

/// For tests: what tile_product() calls from now on.
void use_tile_product(const TileProductFunctions& functions);

}  // namespace kvhive
