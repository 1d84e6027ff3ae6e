#pragma once
// The memory of a paged cache in any layout, filled with poison.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/paged_kv.hpp"

namespace kvhive::testing_support {

/// The layout of the pages and, for rows, whether heads or tokens come first.
enum class Storage { hnd, nhd, packed };
enum class Scaling { none, tensor, head, token };

struct Shape {
  Dtype dtype = Dtype::bf16;
  std::int32_t H = 4, G = 2, D = 32, S = 16;
  Dtype q_dtype = Dtype::f32;
  Storage storage = Storage::hnd;
  Scaling scaling = Scaling::none;
  /// Bytes between heads, planes and blocks, so that no stride can be computed from another. The
  /// default keeps rows aligned to 16 bytes.
  std::int64_t gap = 48;
  bool has_aliases = false;  ///< some blocks are twice in one table, some in two tables
};

/// Blocks of K, V and, if each token has its own, scales. Elements start as NaN (int8: -128), and
/// so do the tokens' scales. Other scales are chosen such that numbers of about 2 use the type's
/// range, and a few saturate.
class PagedArena {
 public:
  PagedArena() = default;
  PagedArena(const Shape& shape, std::int64_t blocks);

  /// A view with pointers into this object.
  PagedKv kv();
  const std::vector<std::byte>& bytes() const { return bytes_; }
  /// The scale of all tokens of head g.
  float fixed_k_scale(std::int32_t g) const { return fixed_scales_[g]; }
  float fixed_v_scale(std::int32_t g) const { return fixed_scales_[fixed_scales_.size() / 2 + g]; }

 private:
  PagedKv kv_;  ///< without pointers
  Scaling scaling_ = Scaling::none;
  std::int64_t values_at_ = 0;  ///< bytes from a block's start to its V
  std::int64_t scales_at_ = 0;  ///< bytes from a block's start to its tokens' scales
  std::vector<std::byte> bytes_;
  std::vector<float> fixed_scales_;  ///< [2: k, v][G]
};

float usual_scale(Dtype dtype);

}  // namespace kvhive::testing_support
