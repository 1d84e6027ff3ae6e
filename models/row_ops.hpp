#pragma once
// The elementwise and row-wise steps between matrix products. Each row is computed in one fixed
// order by one thread, so that its bits do not depend on the batch around it.

#include <cstddef>
#include <span>

namespace kvhive {

/// out = x / sqrt(mean(x^2) + eps) * weight, row by row; rows are weight.size() wide. `out` may be
/// x.
void rms_norm(std::span<const float> x, std::span<const float> weight, float eps,
              std::span<float> out);

/// gate = silu(gate) * up (SwiGLU).
void silu_multiply(std::span<float> gate, std::span<const float> up);

/// gate = gelu(gate) * up, with GELU's approximation by tanh (PyTorch's gelu(approximate="tanh"),
/// Hugging Face's gelu_pytorch_tanh).
void gelu_multiply(std::span<float> gate, std::span<const float> up);

/// x = cap * tanh(x / cap), so that x stays within +-cap. \pre cap > 0
void soft_cap(std::span<float> x, float cap);

/// Rotary embedding: in each head the pairs (low[i], high[i]) of its halves are rotated by the
/// angles of its token.
///
/// \param rows     [tokens, heads, 2 * half]
/// \param cosines  [tokens, half], and `sines`
void rotate_heads(std::span<float> rows, std::size_t heads, std::span<const float> cosines,
                  std::span<const float> sines, std::size_t half);

/// x *= factor.
void scale_in_place(std::span<float> x, float factor);

/// x += y.
void add_in_place(std::span<float> x, std::span<const float> y);

}  // namespace kvhive
