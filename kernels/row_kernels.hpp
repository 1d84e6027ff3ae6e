#pragma once
// The operations of a transformer between its matrix products, row by row. A row's bits depend on
// that row alone. Letters as in paged_kv.hpp; I is the width of the feed-forward layer.

#include <cstdint>
#include <type_traits>

#include "config/dtype.hpp"

namespace kvhive {

/// out[t] = table[tokens[t]] * scale
struct EmbedArgs {
  const void* table = nullptr;           ///< [vocab, width] of dtype
  const std::int32_t* tokens = nullptr;  ///< [T], each in 0..vocab-1
  float* out = nullptr;                  ///< [T, width]
  std::int32_t T = 0, width = 0;
  Dtype dtype = Dtype::f32;  ///< f32, bf16 or f16
  float scale = 1;
};
static_assert(std::is_trivially_copyable_v<EmbedArgs>);

/// x = residual + delta; out = x / sqrt(mean(x^2) + eps) * weight.
///
/// Without `rows`, every row is normalised and x becomes the new residual. With `rows`, only the
/// rows named there are normalised, in that order (a row may be named twice), and the residual is
/// not changed. Without a residual, x is delta, and out may be delta if it has its type.
struct AddRmsNormArgs {
  float* residual = nullptr;           ///< [T, width]; null: all zeros, and not written
  const void* delta = nullptr;         ///< [T, width] of delta_dtype; null: all zeros
  const float* weight = nullptr;       ///< [width]
  void* out = nullptr;                 ///< [n, width] of out_dtype
  const std::int32_t* rows = nullptr;  ///< [n], each in 0..T-1; null: all rows, n == T
  std::int32_t n = 0, width = 0;
  float eps = 0;
  Dtype delta_dtype = Dtype::f32;  ///< f32, bf16 or f16; out_dtype, too
  Dtype out_dtype = Dtype::f32;
  std::int64_t delta_stride = 0;  ///< elements from one row of delta to the next; 0: width
};
static_assert(std::is_trivially_copyable_v<AddRmsNormArgs>);

/// Normalises each head of q and k if there are weights for it (Qwen3). Then rotates the pair of
/// dims i and i + D/2 by position * frequency[i]; that product is rounded to f32, as in the models'
/// training.
struct RotateArgs {
  void* q = nullptr;                        ///< [T, H, D] of dtype, in place
  void* k = nullptr;                        ///< [T, G, D] of dtype, in place
  const std::int32_t* positions = nullptr;  ///< [T]
  const float* frequencies = nullptr;       ///< [D/2] radians per position
  const float* q_norm = nullptr;            ///< [D]; null: no normalisation
  const float* k_norm = nullptr;
  std::int32_t T = 0, H = 0, G = 0, D = 0;
  float eps = 0;             ///< of the norms
  Dtype dtype = Dtype::f32;  ///< f32, bf16 or f16
  float factor = 1;          ///< of sines and cosines (yarn's attention factor)
};
static_assert(std::is_trivially_copyable_v<RotateArgs>);

/// Rotates dims 2i and 2i + 1 of each head together, as DeepSeek's models are trained, from one
/// place to another.
struct RotatePairsArgs {
  const void* from = nullptr;               ///< T * H heads of D elements of dtype
  void* to = nullptr;                       ///< likewise; the same, or no overlap
  const std::int32_t* positions = nullptr;  ///< [T]
  const float* frequencies = nullptr;       ///< [D/2] radians per position
  std::int32_t T = 0, H = 0, D = 0;
  std::int64_t from_stride = 0, to_stride = 0;  ///< elements from one head to the next
  Dtype dtype = Dtype::f32;                     ///< f32, bf16 or f16
  float factor = 1;                             ///< as in RotateArgs
};
static_assert(std::is_trivially_copyable_v<RotatePairsArgs>);

/// q[t] *= 1 + scale * log(1 + floor((position + 1) / floor)): the queries of layers without
/// rotation grow with the number of keys (Llama 4).
struct TuneQueriesArgs {
  void* q = nullptr;                        ///< [T, width] of dtype, in place
  const std::int32_t* positions = nullptr;  ///< [T]
  std::int32_t T = 0, width = 0;
  float floor = 1, scale = 0;
  Dtype dtype = Dtype::f32;  ///< f32, bf16 or f16
};
static_assert(std::is_trivially_copyable_v<TuneQueriesArgs>);

/// The function between the halves of a feed-forward network.
enum class Activation : std::uint8_t {
  silu,  ///< x / (1 + exp(-x))
  gelu,  ///< x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x^3)))
};

/// out = activation(gate) * up. `gate` and `up` may be the two halves of one matrix. With
/// `weights`, both are first multiplied by their row's weight: they are then products of a weighted
/// input.
struct GateMultiplyArgs {
  const void* gate = nullptr;  ///< T rows of I, of dtype
  const void* up = nullptr;    ///< likewise
  void* out = nullptr;         ///< [T, I] of dtype; may be `gate` if that is [T, I], too
  std::int32_t T = 0, I = 0;
  std::int64_t in_stride = 0;  ///< elements from one row of gate or up to the next
  Dtype dtype = Dtype::f32;    ///< f32, bf16 or f16
  Activation activation = Activation::silu;
  const float* weights = nullptr;       ///< by pair of token and expert; null: all are 1
  const std::int32_t* pairs = nullptr;  ///< [T] each row's pair; only with `weights`
};
static_assert(std::is_trivially_copyable_v<GateMultiplyArgs>);

/// values = cap * tanh(values / cap)
struct SoftCapArgs {
  float* values = nullptr;
  std::int64_t count = 0;
  float cap = 0;  ///< more than 0
};
static_assert(std::is_trivially_copyable_v<SoftCapArgs>);

void embed_reference(const EmbedArgs& args);
void add_rms_norm_reference(const AddRmsNormArgs& args);
void rotate_reference(const RotateArgs& args);
void rotate_pairs_reference(const RotatePairsArgs& args);
void tune_queries_reference(const TuneQueriesArgs& args);
void gate_multiply_reference(const GateMultiplyArgs& args);
void soft_cap_reference(const SoftCapArgs& args);

}  // namespace kvhive
