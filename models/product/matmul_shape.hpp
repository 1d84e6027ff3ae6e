#pragma once
// The oneDNN primitives for one shape of matrix, and which of them give the same bits.

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <oneapi/dnnl/dnnl.hpp>
#include <vector>

#include "config/dtype.hpp"

namespace kvhive {

/// Computes y[tile, columns] = x[tile, depth] * w[columns, depth]^T for a fixed number of rows,
/// only on the calling thread (the caller distributes tiles over threads). x and y are dense,
/// because oneDNN's fast path does not support a row stride of y.
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

/// The usable tiles of one (columns, depth, dtype), by ascending number of rows: they give a row
/// the same bits, at whichever place in the tile it is. All weights of that shape share them.
struct MatmulShape {
  std::int32_t columns = 0;
  std::int32_t depth = 0;
  std::vector<TileMatmul> tiles;
};

/// Returns the tiles of a shape from a process-wide cache. The first call for a shape makes and
/// compares the tiles, with `weights`, which takes milliseconds. Thread-safe.
std::shared_ptr<const MatmulShape> matmul_shape(std::int32_t columns, std::int32_t depth,
                                                Dtype dtype, const void* weights);

}  // namespace kvhive
