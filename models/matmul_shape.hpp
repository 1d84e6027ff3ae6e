#pragma once
// oneDNN primitives of one matmul shape, and which of them give the same bits.

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <oneapi/dnnl/dnnl.hpp>
#include <vector>

#include "config/dtype.hpp"

namespace kvhive {

/// y[tile, columns] = x[tile, depth] * w[columns, depth]^T for a fixed number of rows, on the
/// calling thread alone (the caller spreads tiles over threads). Dense x and y: oneDNN's fast path
/// takes no leading dimension of y.
class TileMatmul {
 public:
  TileMatmul(std::int32_t tile, std::int32_t columns, std::int32_t depth, Dtype dtype);

  /// \param x, w  bf16 or f32, as the constructor was told
  /// \threads     any number at once
  void run(const void* x, const void* w, float* y) const;
  std::int32_t tile() const { return tile_; }

 private:
  std::int32_t tile_;
  dnnl::memory::desc x_, w_, y_, scratchpad_;
  dnnl::matmul matmul_;
};

/// The tiles of one (columns, depth, dtype), ascending, that agree bit by bit whatever the row's
/// place. Shared by all weights of that shape.
struct MatmulShape {
  std::int32_t columns = 0;
  std::int32_t depth = 0;
  std::vector<TileMatmul> tiles;
};

/// From a process-wide cache; the first call for a shape calibrates it on `weights` and takes
/// milliseconds. Thread-safe.
std::shared_ptr<const MatmulShape> matmul_shape(std::int32_t columns, std::int32_t depth,
                                                Dtype dtype, const void* weights);

}  // namespace kvhive
