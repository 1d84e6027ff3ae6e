#pragma once
// The one matrix product of a transformer: y[T, N] = x[T, K] * w[N, K]^T + bias.
//
// Invariant: a row of y depends on its row of x alone, bit by bit; not on how many other rows are
// in the call, nor on its place among them, nor on the number of threads. Prefill, chunked prefill
// and decode therefore write the same KV, so that blocks may be shared whoever computed them.
//
// bf16 weights on a CPU with bf16 dot products have a kernel of our own (bf16_product.hpp), for all
// numbers of rows. All else is oneDNN's. A library kernel promises no such thing: it may add in
// another order for another number of rows. Hence:
//   1. oneDNN only ever sees a few fixed row counts ("tiles"); a last, partial tile is padded.
//   2. Columns are cut into slabs of fixed width. Each product of a tile and a slab runs on one
//      thread; threads share out the products.
//   3. At load every larger tile is compared bit by bit with the 16-row one, on real weights and on
//      rows moved to several places, and is used only where all results are equal
//      (matmul_shape.hpp).
//
// Weights stay where they are mapped, in the file's row-major layout, shared by all processes.
// oneDNN then packs a slab on every call: measured on a Zen 5 core, 1.0x (256 rows) to 2.5x (1 row)
// the time of weights packed beforehand, which would cost every process a private copy of the
// model. Only f16 is converted, once, into a private f32 copy: oneDNN has no f16 on most CPUs.

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "config/dtype.hpp"

namespace kvhive {

struct MatmulShape;
class TileMatmul;

/// Row-major [N, K] weights. Borrowed.
struct MatmulWeights {
  Dtype dtype = Dtype::f32;
  std::int32_t N = 0;
  std::int32_t K = 0;
  std::span<const std::byte> bytes;
};

/// bf16 weights: x is rounded to bf16, products are added in f32. Otherwise all is f32.
class Matmul {
 public:
  /// \param weights  must outlive this, except f16
  /// \param bias     N values or empty
  Matmul(const MatmulWeights& weights, std::vector<float> bias);
  Matmul(Matmul&&) = default;
  Matmul& operator=(Matmul&&) = default;

  /// \param x  [rows, K]
  /// \param y  [rows, N]; may not overlap x
  /// \threads  any number at once
  void apply(std::span<const float> x, std::span<float> y) const;

  /// apply() by oneDNN even where our own kernel is used: what benches compare with.
  void apply_with_onednn(std::span<const float> x, std::span<float> y) const;

 private:
  /// Columns first..first+shape->columns of w.
  struct Slab {
    std::int32_t first = 0;
    std::shared_ptr<const MatmulShape> shape;
  };
  /// A tile of rows times a slab of columns.
  struct Product {
    const Slab* slab = nullptr;
    const TileMatmul* tile = nullptr;
    std::int32_t first_row = 0;
  };

  std::int32_t checked_rows(std::span<const float> x, std::span<float> y) const;
  void apply_with_dots(std::span<const float> x, std::int32_t rows, std::span<float> y) const;
  const std::byte* slab_weights(std::int32_t first_column) const;
  /// oneDNN's, made and compared when first needed.
  const std::vector<Slab>& slabs() const;
  std::vector<Product> products(std::int32_t rows) const;
  void run(const Product& product, std::int32_t rows, const std::byte* x, float* y) const;

  MatmulWeights weights_;
  std::vector<float> converted_;  ///< f16 weights only
  std::vector<float> bias_;
  struct LazySlabs;
  std::shared_ptr<LazySlabs> slabs_;
};

}  // namespace kvhive
