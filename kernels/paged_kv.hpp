#pragma once
// The view of a paged KV cache that kernels read and write. Kernels know nothing of pools: a plain
// vector will do.
//
// Alphabet used in every kernel: B sequences, T query tokens of the whole batch, H query heads, G
// kv heads, D head size, S tokens per block, M blocks per row of the block table.

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "config/dtype.hpp"
#include "config/page_layout.hpp"

namespace kvhive {

/// What stored elements are multiplied with to get their values; borrowed. The scale of (block b,
/// head g, slot s) is at k + b*block_stride + g*head_stride + s*token_stride, strides in BYTES:
/// all zero is one scale per tensor, head_stride alone one per head, all three one per token and
/// head (kept inside the pages, so that whoever shares the block shares them). Null: all are 1, as
/// they are for types of more than 8 bits.
struct KvScales {
  float* k = nullptr;
  float* v = nullptr;
  std::int64_t block_stride = 0;
  std::int64_t head_stride = 0;
  std::int64_t token_stride = 0;

  /// Written along with the tokens; else they are given and fixed.
  constexpr bool are_per_token() const { return token_stride != 0; }
};

/// One layer of a paged KV cache. Borrowed pointers; strides in BYTES, so that any block-major
/// layout fits: in the layout `rows` element (block b, head g, slot s, dim d) of K is at k +
/// b*block_stride + g*head_stride + s*token_stride + d*bytes_of(dtype).
struct PagedKv {
  std::byte* k = nullptr;         ///< K of block 0
  std::byte* v = nullptr;         ///< V of block 0
  std::int64_t block_stride = 0;  ///< bytes from one block to the next
  std::int64_t head_stride = 0;   ///< bytes from one kv head to the next
  std::int64_t token_stride = 0;  ///< bytes from one slot to the next
  std::int32_t G = 0, S = 0, D = 0;
  Dtype dtype = Dtype::bf16;
  PageLayout layout = PageLayout::rows;
  KvScales scales = {};
};
static_assert(std::is_trivially_copyable_v<PagedKv>);

}  // namespace kvhive
