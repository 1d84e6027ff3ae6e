#pragma once
// What one block of KV looks like in memory. Every engine of a pool must agree on it, so it is part
// of the fingerprint.

#include <cstddef>
#include <cstdint>

#include "base/expected.hpp"
#include "config/dtype.hpp"
#include "config/page_layout.hpp"

namespace kvhive {

/// One block (vLLM's "page" over all layers), block-major so that a block is one contiguous copy:
///   [block][L layers][2: K, V][G kv heads][S tokens x D head size, in the order that `pages`
///   names]
/// In int8, whose range fits no data by itself, a layer ends with its scales:
///   [2: K, V][G kv heads][S tokens] float
/// fp8 is stored as it is (a scale of 1, vLLM's default), or by the scales that the model's files
/// have for it: they belong to the model, not to the block.
struct KvLayout {
  std::uint32_t layers = 0;      ///< L
  std::uint32_t kv_heads = 0;    ///< G
  std::uint32_t head_size = 0;   ///< D
  std::uint32_t block_size = 0;  ///< S, tokens per block
  Dtype dtype = Dtype::bf16;
  PageLayout pages = PageLayout::rows;
  /// Bytes behind the last layer, where another model of the pool needs larger blocks.
  std::uint32_t padding = 0;

  /// Bytes of one layer: 2*S*G*D*dtype (vLLM: AttentionSpec.page_size_bytes), and the scales.
  std::size_t layer_bytes() const { return 2 * (plane_bytes() + scales_bytes()); }
  /// Bytes of a whole block: all layers, and the padding.
  std::size_t block_bytes() const { return layers * layer_bytes() + padding; }
  /// Bytes of K alone (or V alone) of one layer in one block.
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
