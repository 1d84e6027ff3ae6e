#pragma once
// The memory of a paged cache in any layout, full of poison.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/paged_kv.hpp"

namespace kvhive::testing_support {

/// Where the pages' bytes are: PageLayout, and for rows the order of heads and tokens.
enum class Storage { hnd, nhd, packed };
enum class Scaling { none, tensor, head, token };

struct Shape {
  Dtype dtype = Dtype::bf16;
  std::int32_t H = 4, G = 2, D = 32, S = 16;
  Dtype q_dtype = Dtype::f32;
  Storage storage = Storage::hnd;
  Scaling scaling = Scaling::none;
  /// Bytes between heads, planes and blocks, so that no stride follows from another. The default
  /// keeps rows aligned to 16 bytes.
  std::int64_t gap = 48;
  bool has_aliases = false;  ///< some blocks are in a table twice, some in two tables
};

/// Blocks of K, V and, where tokens have them, scales of both. Elements are NaN (int8: -128), as
/// are the tokens' scales; other scales make numbers of about 2 fill the type's range, but for a
/// few that saturate.
class PagedArena {
 public:
  PagedArena() = default;
  PagedArena(const Shape& shape, std::int64_t blocks);

  /// Pointers into this object.
  PagedKv kv();
  const std::vector<std::byte>& bytes() const { return bytes_; }
  /// Of all tokens of head g.
  float fixed_k_scale(std::int32_t g) const { return fixed_scales_[g]; }
  float fixed_v_scale(std::int32_t g) const { return fixed_scales_[fixed_scales_.size() / 2 + g]; }

 private:
  PagedKv kv_;  ///< without pointers
  Scaling scaling_ = Scaling::none;
  std::int64_t values_at_ = 0;  ///< bytes from a block to its V
  std::int64_t scales_at_ = 0;  ///< bytes from a block to the scales of its tokens
  std::vector<std::byte> bytes_;
  std::vector<float> fixed_scales_;  ///< [2: k, v][G]
};

float usual_scale(Dtype dtype);

}  // namespace kvhive::testing_support
