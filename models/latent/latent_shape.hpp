#pragma once
// The sizes of multi-head latent attention, as config.json says them.
//
// Source: DeepSeek-V2 (2024); transformers: configuration_deepseek_v2.py.

#include <cstdint>

#include "base/expected.hpp"
#include "base/json_file.hpp"

namespace kvhive {

/// A token's K and V of all heads are products of one latent vector; beside it is a key with rotary
/// embedding, which all heads share.
struct LatentShape {
  std::int32_t rank = 0;        ///< kv_lora_rank: elements of the latent vector
  std::int32_t rope = 0;        ///< qk_rope_head_dim: of a head's query and the shared key, rotated
  std::int32_t nope = 0;        ///< qk_nope_head_dim: of a head's query and key, not rotated
  std::int32_t value = 0;       ///< v_head_dim
  std::int32_t query_rank = 0;  ///< q_lora_rank; 0: queries are one product

  /// Elements that the cache keeps of a token.
  std::int32_t row() const { return rank + rope; }
  /// Elements of a head's query and key.
  std::int32_t query() const { return nope + rope; }
  friend bool operator==(const LatentShape&, const LatentShape&) = default;
};

/// Reads the sizes. The rows of the cache, and the kernels for them, are of one size: another
/// kv_lora_rank or qk_rope_head_dim is an error that names it.
[[nodiscard]] Expected<LatentShape> read_latent_shape(const JsonFields& fields);

}  // namespace kvhive
