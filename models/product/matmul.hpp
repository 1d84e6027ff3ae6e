#pragma once
// The one matrix product of a transformer: y[T, N] = x[T, K] * w[N, K]^T + bias.
//
// Invariant: the bits of a row of y depend only on its row of x; not on how many other rows are in
// the call, nor on its place among them, nor on the number of threads. Prefill, chunked prefill and
// decode therefore write the same KV, so blocks can be shared, whichever process computed them and
// in whichever step. Products of another arithmetic (config/cpu_kernels.hpp) have other bits.
//
// The weights stay in the mapped file, in its row-major layout, shared by all processes, and are
// converted in registers; packed beforehand they would be a private copy of the model in every
// process. Quantized weights stay in the file, too (coded_product.hpp). A caller may hand over
// bytes that it made itself.

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "config/dtype.hpp"
#include "models/product/coded_product.hpp"

namespace kvhive {

/// Row-major [N, K] weights. Does not own the bytes.
struct MatmulWeights {
  Dtype dtype = Dtype::f32;  ///< f32, f16 or bf16
  std::int32_t N = 0;
  std::int32_t K = 0;
  std::span<const std::byte> bytes;
};

/// One matrix of weights, ready to multiply. With bf16 weights, x is rounded to bf16 and products
/// are added in f32. Otherwise everything is computed in f32.
class Matmul {
 public:
  /// \param weights  must outlive this object
  /// \param bias     N values or empty
  Matmul(const MatmulWeights& weights, std::vector<float> bias);
  /// The same with bytes of this object's own.
  /// \param weights  its `bytes` are set to `owned`
  Matmul(MatmulWeights weights, std::vector<std::byte> owned, std::vector<float> bias);
  /// Weights in codes: every bit of a product is that of the same product with their values.
  /// \param weights  its `bytes` must outlive this object
  /// \param values   bf16 or f32: what they stand for
  Matmul(CodedMatrix weights, Dtype values, std::vector<float> bias);
  Matmul(Matmul&&) = default;
  Matmul& operator=(Matmul&&) = default;

  /// \param x  [rows, K]
  /// \param y  [rows, N]; may not overlap x
  /// \threads  any number at once
  void apply(std::span<const float> x, std::span<float> y) const;

  struct Output {
    const Matmul* matrix = nullptr;
    std::span<float> y;  ///< [rows, N]; may not overlap x or another
  };
  /// Products of one x by several matrices, such as a layer's q, k and v: the same bits, but x is
  /// packed once, no thread waits for the others between them, and small ones are shared out, too.
  /// \param outputs  of matrices with the same K
  static void apply_all(std::span<const float> x, std::span<const Output> outputs);

  /// Bytes of weights that are this object's own: those handed over, and scales.
  std::size_t owned_bytes() const {
    return owned_.size() + (coded_ ? coded_->matrix.owned_bytes() : std::size_t{0});
  }

 private:
  class Product;

  void check() const;
  std::int32_t checked_rows(std::span<const float> x, std::span<float> y) const;
  static void run(std::span<const float> x, std::span<Product> products);

  MatmulWeights weights_;  ///< without bytes, if there are codes
  std::optional<CodedWeights> coded_;
  std::vector<std::byte> owned_;  ///< what `weights_` refers to, if it is not the caller's
  std::vector<float> bias_;
};

}  // namespace kvhive
