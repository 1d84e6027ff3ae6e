#pragma once
// A block in parts of whole layers, which a swap copies one after the other: the first layers
// compute while the last ones are under way.

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "config/kv_layout.hpp"

namespace kvhive {

class LayerParts {
 public:
  static constexpr std::uint32_t kMostParts = 4;

  /// \param at_least  bytes of a part, unless it is the only one: small copies cost more than they
  ///                  hide
  LayerParts(const KvLayout& kv, std::size_t at_least)
      : layers_(kv.layers),
        layer_bytes_(kv.layer_bytes()),
        count_(std::min(kMostParts, kv.layers)) {
    while (count_ > 1 && least_bytes() < at_least) --count_;
  }

  std::uint32_t count() const { return count_; }
  /// Of part `count()`: as many as there are.
  std::uint32_t first_layer(std::uint32_t part) const { return part * layers_ / count_; }
  /// Of this part of block 0; bytes of a block's layers lie side by side.
  std::size_t offset(std::uint32_t part) const { return first_layer(part) * layer_bytes_; }
  std::size_t bytes(std::uint32_t part) const { return offset(part + 1) - offset(part); }
  /// Of the smallest part.
  std::size_t least_bytes() const { return layers_ / count_ * layer_bytes_; }

 private:
  std::uint32_t layers_;
  std::size_t layer_bytes_;
  std::uint32_t count_;
};

}  // namespace kvhive
