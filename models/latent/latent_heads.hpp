#pragma once
// The projections of latent attention, absorbed: instead of making K and V of every head from each
// latent row of the cache, a head's query is taken to the latent's dimensions, and what it attends
// to is taken back.
//
//   q . (W_UK latent)  =  (W_UK^T q) . latent        sum of p (W_UV latent)  =  W_UV (sum of p
//   latent)
//
// Each head's matrices are parts of kv_b_proj. Invariant: the bits of a token depend on the token
// alone, since each product has the invariant of Matmul.
//
// Source: DeepSeek-V2 (2024), 2.1.2; vLLM v1/attention/backends/mla.

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/memory/line_allocator.hpp"

#include "models/latent/latent_shape.hpp"
#include "models/product/matmul.hpp"

namespace kvhive {

/// Whether the bytes of weights live as long as the model, as those of its files do.
enum class BytesLive : std::uint8_t { as_the_model, for_the_call };

class LatentHeads {
 public:
  /// \param kv_b  [H * (nope + value), rank]: of each head W_UK, then W_UV
  LatentHeads(const MatmulWeights& kv_b, BytesLive live, std::int32_t heads,
              const LatentShape& shape);

  /// \param q     [T, H, nope + rope]
  /// \param rows  [T, H, rank + rope]: what a head's query is to a latent row; rope is copied
  void absorb(std::span<const float> q, std::span<float> rows, LineVector<float>& scratch) const;

  /// \param attended  [T, H, rank]
  /// \param values    [T, H, value]
  void expand(std::span<const float> attended, std::span<float> values,
              LineVector<float>& scratch) const;

  /// Floats that `scratch` grows to.
  static std::size_t scratch_floats(std::size_t tokens, const LatentShape& shape);

  /// Bytes of weights that are this process's own: W_UK, transposed; where the bytes do not live as
  /// long, W_UV, too.
  std::size_t owned_bytes() const;

 private:
  std::vector<Matmul> to_latent_;    ///< by head, W_UK^T: [rank, nope]
  std::vector<Matmul> from_latent_;  ///< by head, W_UV: [value, rank]
  LatentShape shape_;
};

}  // namespace kvhive
