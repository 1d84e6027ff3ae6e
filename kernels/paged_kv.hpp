#pragma once
// The view of a paged KV cache that kernels read and write. Kernels do not include the pool: any
// memory can be a cache, in tests a plain vector.
//
// Sizes have the same letters in every kernel: B sequences, T query tokens of the whole batch, H
// query heads, G kv heads, D head size, S tokens per block, M blocks per row of the block table.

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "config/dtype.hpp"
#include "config/page_layout.hpp"

namespace kvhive {

/// Scales: an element's value is the stored number times its scale. Borrowed pointers. The scale of
/// (block b, head g, slot s) is at k + b*block_stride + g*head_stride + s*token_stride, with
/// strides in BYTES. All strides 0: one scale per tensor. Only head_stride: one per head. All
/// three: one per token and head, kept inside the pages, so that every process that shares a block
/// finds its scales in it. Null: all scales are 1, as for all types of more than 8 bits.
struct KvScales {
  float* k = nullptr;
  float* v = nullptr;
  std::int64_t block_stride = 0;
  std::int64_t head_stride = 0;
  std::int64_t token_stride = 0;

  /// True: each write of a token computes and writes its scale. False: scales are given and fixed.
  constexpr bool are_per_token() const { return token_stride != 0; }
};

/// One layer of a paged KV cache. Borrowed pointers; strides in BYTES, so that any block-major
/// layout can be described. In the layout `rows`, element (block b, head g, slot s, dim d) of K is
/// at k + b*block_stride + g*head_stride + s*token_stride + d*bytes_of(dtype): token_stride = D
/// elements is HND (head by head), head_stride = D elements is NHD (token by token).
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
