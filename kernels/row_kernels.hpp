#pragma once
// What a transformer does between its matrix products, row by row. A row's bits depend on that row
// alone. Alphabet as in paged_kv.hpp; I is the width of the feed-forward.

#include <cstdint>
#include <type_traits>

#include "config/dtype.hpp"

namespace kvhive {

/// out[t] = table[tokens[t]]
struct EmbedArgs {
  const void* table = nullptr;           ///< [vocab, width] of dtype
  const std::int32_t* tokens = nullptr;  ///< [T], each in 0..vocab-1
  float* out = nullptr;                  ///< [T, width]
  std::int32_t T = 0, width = 0;
  Dtype dtype = Dtype::f32;  ///< f32, bf16 or f16
};
static_assert(std::is_trivially_copyable_v<EmbedArgs>);

/// x = residual + delta; out = x / sqrt(mean(x^2) + eps) * weight.
///
/// Without `rows` every row is normed and the sums become the new residual. With `rows` only those
/// are, in that order (a row may be named twice), and the residual stays as it is.
struct AddRmsNormArgs {
  float* residual = nullptr;           ///< [T, width]
  const void* delta = nullptr;         ///< [T, width] of delta_dtype; null: nothing to add
  const float* weight = nullptr;       ///< [width]
  void* out = nullptr;                 ///< [n, width] of out_dtype
  const std::int32_t* rows = nullptr;  ///< [n], each in 0..T-1; null: all, n == T
  std::int32_t n = 0, width = 0;
  float eps = 0;
  Dtype delta_dtype = Dtype::f32;  ///< f32, bf16 or f16, as the next
  Dtype out_dtype = Dtype::f32;
};
static_assert(std::is_trivially_copyable_v<AddRmsNormArgs>);

/// Norms each head of q and k where there are weights for it (Qwen3), then turns dim i with dim
/// i + D/2 by position * frequency[i], a product rounded to f32 as models were trained with.
struct RotateArgs {
  void* q = nullptr;                        ///< [T, H, D] of dtype, in place
  void* k = nullptr;                        ///< [T, G, D] of dtype, in place
  const std::int32_t* positions = nullptr;  ///< [T]
  const float* frequencies = nullptr;       ///< [D/2] radians per position
  const float* q_norm = nullptr;            ///< [D]; null: not normed
  const float* k_norm = nullptr;
  std::int32_t T = 0, H = 0, G = 0, D = 0;
  float eps = 0;             ///< of the norms
  Dtype dtype = Dtype::f32;  ///< f32, bf16 or f16
};
static_assert(std::is_trivially_copyable_v<RotateArgs>);

/// out = gate / (1 + exp(-gate)) * up (SwiGLU). `gate` and `up` may be the halves of one matrix.
struct SiluMultiplyArgs {
  const void* gate = nullptr;  ///< T rows of I, of dtype
  const void* up = nullptr;    ///< likewise
  void* out = nullptr;         ///< [T, I] of dtype; may be `gate` if that is [T, I], too
  std::int32_t T = 0, I = 0;
  std::int64_t in_stride = 0;  ///< elements from one row of gate or up to the next
  Dtype dtype = Dtype::f32;    ///< f32, bf16 or f16
};
static_assert(std::is_trivially_copyable_v<SiluMultiplyArgs>);

void embed_reference(const EmbedArgs& args);
void add_rms_norm_reference(const AddRmsNormArgs& args);
void rotate_reference(const RotateArgs& args);
void silu_multiply_reference(const SiluMultiplyArgs& args);

}  // namespace kvhive
