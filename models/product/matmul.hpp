#pragma once
// The one matrix product of a transformer: y[T, N] = x[T, K] * w[N, K]^T + bias.
//
// Invariant: the bits of a row of y depend only on its row of x; not on how many other rows are in
// the call, nor on its place among them, nor on the number of threads. Prefill, chunked prefill and
// decode therefore write the same KV, so blocks can be shared, whichever process computed them and
// in whichever step.
//
// bf16 weights are multiplied by kvhive's own kernels (bf16_product.hpp), for all numbers of rows,
// on CPUs with bf16 dot products and on those without AVX-512 (where oneDNN has no bf16).
// Everything else is computed by oneDNN, which does not promise the invariant: it may add in
// another order for another number of rows. Hence:
//   1. oneDNN is called only for a few fixed numbers of rows ("tiles"); a last, partial tile is
//   padded.
//   2. Columns are cut into slabs of fixed width. Each product of a tile and a slab is computed by
//      one thread; the products are distributed over the threads.
//   3. Each other tile is compared bit by bit with the 16-row tile, on the real weights and with
//      rows moved to several places, and is used only if all results are equal (matmul_shape.hpp).
//
// The weights stay in the mapped file, in its row-major layout, shared by all processes. So oneDNN
// packs a slab on every call. On a Zen 5 core that takes 1.0x (256 rows) to 2.5x (1 row) the time
// of weights that were packed beforehand; but packed weights would be a private copy of the model
// in every process. Only f16 weights are converted, once, into a private f32 copy, because oneDNN
// has no f16 on most CPUs; and a caller may hand over bytes that it made itself (quantized
// weights).

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "config/dtype.hpp"

namespace kvhive {

struct MatmulShape;
class TileMatmul;

/// Row-major [N, K] weights. Does not own the bytes.
struct MatmulWeights {
  Dtype dtype = Dtype::f32;
  std::int32_t N = 0;
  std::int32_t K = 0;
  std::span<const std::byte> bytes;
};

/// One matrix of weights, ready to multiply. With bf16 weights, x is rounded to bf16 and products
/// are added in f32. Otherwise everything is computed in f32.
class Matmul {
 public:
  /// \param weights  must outlive this object, unless they are f16 (these are copied)
  /// \param bias     N values or empty
  Matmul(const MatmulWeights& weights, std::vector<float> bias);
  /// The same with bytes of this object's own.
  /// \param weights  its `bytes` are set to `owned`
  Matmul(MatmulWeights weights, std::vector<std::byte> owned, std::vector<float> bias);
  Matmul(Matmul&&) = default;
  Matmul& operator=(Matmul&&) = default;

  /// \param x  [rows, K]
  /// \param y  [rows, N]; may not overlap x
  /// \threads  any number at once
  void apply(std::span<const float> x, std::span<float> y) const;

  /// Bytes of weights that are this object's own: f16 as f32, or those handed over.
  std::size_t owned_bytes() const { return owned_.size(); }

  /// The same as apply(), but always by oneDNN, so that benchmarks can compare kvhive's own kernels
  /// with it. With bf16 weights only on CPUs with AVX-512.
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
  void apply_in_place(std::span<const float> x, std::int32_t rows, std::span<float> y) const;
  const std::byte* slab_weights(std::int32_t first_column) const;
  /// The slabs for oneDNN, made and checked when they are first needed.
  const std::vector<Slab>& slabs() const;
  std::vector<Product> products(std::int32_t rows) const;
  void run(const Product& product, std::int32_t rows, const std::byte* x, float* y) const;

  MatmulWeights weights_;
  std::vector<std::byte> owned_;  ///< what `weights_` refers to, if it is not the caller's
  std::vector<float> bias_;
  struct LazySlabs;
  std::shared_ptr<LazySlabs> slabs_;
};

}  // namespace kvhive
