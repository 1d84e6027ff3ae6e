#pragma once
// Divides a block into parts of whole layers. A swap copies one part after the other, so that the
// first layers can be computed while the last layers are still being copied.

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "config/kv_layout.hpp"

namespace kvhive {

class LayerParts {
 public:
  static constexpr std::uint32_t kMostParts = 4;

  /// \param at_least the fewest bytes of a part, unless there is only one part: a smaller copy
  ///                 would cost more time than it saves
  LayerParts(const KvLayout& kv, std::size_t at_least)
      : layers_(kv.layers),
        layer_bytes_(kv.layer_bytes()),
        count_(std::min(kMostParts, kv.layers)) {
    while (count_ > 1 && least_bytes() < at_least) --count_;
  }

  std::uint32_t count() const { return count_; }
  /// The first layer of a part. For `part` == count(): the number of layers.
  std::uint32_t first_layer(std::uint32_t part) const { return part * layers_ / count_; }
  /// The offset of a part in a block, in bytes. A block's layers lie one after the other.
  std::size_t offset(std::uint32_t part) const { return first_layer(part) * layer_bytes_; }
  std::size_t bytes(std::uint32_t part) const { return offset(part + 1) - offset(part); }
  /// Bytes of the smallest part.
  std::size_t least_bytes() const { return layers_ / count_ * layer_bytes_; }

 private:
  std::uint32_t layers_;
  std::size_t layer_bytes_;
  std::uint32_t count_;
};

}  // namespace kvhive
