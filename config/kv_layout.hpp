#pragma once
// What one block of KV looks like in memory. Every engine of a pool must agree on it, so it is part
// of the fingerprint.

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/expected.hpp"
#include "config/dtype.hpp"
#include "config/page_layout.hpp"

namespace kvhive {

/// What a layer keeps of a token.
enum class KvKind : std::uint8_t {
  heads = 0,   ///< K and V of each kv head
  latent = 1,  ///< one row for all heads (multi-head latent attention)
};
constexpr std::string_view to_string(KvKind kind) {
  return kind == KvKind::heads ? "heads" : "latent";
}

/// A latent row: elements that are key and value of all heads, then elements of the key alone.
inline constexpr std::uint32_t kLatentElements = 512;
inline constexpr std::uint32_t kLatentRopeElements = 64;
inline constexpr std::uint32_t kLatentScaleGroup = 128;  ///< elements of an e4m3 row with one scale

/// Bytes of a latent row. In bf16 all elements; in e4m3 the first ones so, then their float scales,
/// then the others in bf16 (vLLM's fp8_ds_mla). There are no rows of other types.
constexpr std::size_t latent_row_bytes(Dtype dtype) {
  if (dtype == Dtype::bf16) return (kLatentElements + kLatentRopeElements) * bytes_of(dtype);
  return kLatentElements + kLatentElements / kLatentScaleGroup * sizeof(float) +
         kLatentRopeElements * bytes_of(Dtype::bf16);
}
constexpr bool is_latent_dtype(Dtype dtype) { return dtype == Dtype::bf16 || dtype == Dtype::e4m3; }

/// One block (vLLM's "page" over all layers), block-major so that a block is one contiguous copy:
///   [block][L layers][2: K, V][G kv heads][S tokens x D head size, in the order that `pages`
///   names]
/// In int8, whose range fits no data by itself, a layer ends with its scales:
///   [2: K, V][G kv heads][S tokens] float
/// With latent attention there is no V, and one row for all heads:
///   [block][L layers][S tokens] row
/// fp8 is stored as it is (a scale of 1, vLLM's default), or by the scales that the model's files
/// have for it: they belong to the model, not to the block.
struct KvLayout {
  std::uint32_t layers = 0;      ///< L
  std::uint32_t kv_heads = 0;    ///< G
  std::uint32_t head_size = 0;   ///< D
  std::uint32_t block_size = 0;  ///< S, tokens per block
  Dtype dtype = Dtype::bf16;
  PageLayout pages = PageLayout::rows;
  KvKind kind = KvKind::heads;  ///< latent: G = 1, D = all elements of a row, pages in rows
  /// Bytes behind the last layer, where another model of the pool needs larger blocks.
  std::uint32_t padding = 0;

  /// Bytes of one layer: 2*S*G*D*dtype (vLLM: AttentionSpec.page_size_bytes), and the scales; of
  /// latent rows S rows (MLAAttentionSpec.page_size_bytes).
  std::size_t layer_bytes() const {
    if (kind == KvKind::latent) return block_size * latent_row_bytes(dtype);
    return 2 * (plane_bytes() + scales_bytes());
  }
  /// Bytes of a whole block: all layers, and the padding.
  std::size_t block_bytes() const { return layers * layer_bytes() + padding; }
  /// Bytes of K alone (or V alone) of one layer in one block. \pre not latent, as the next
  std::size_t plane_bytes() const {
    return std::size_t{kv_heads} * block_size * head_size * bytes_of(dtype);
  }

  bool has_token_scales() const { return dtype == Dtype::int8; }
  /// Bytes of the scales of K alone (or V alone) of one layer in one block.
  std::size_t scales_bytes() const {
    return has_token_scales() ? std::size_t{kv_heads} * block_size * sizeof(float) : 0;
  }

  friend bool operator==(const KvLayout&, const KvLayout&) = default;
};

}  // namespace kvhive
