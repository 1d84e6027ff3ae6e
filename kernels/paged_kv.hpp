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

namespace kvhive {

/// One layer of a paged KV cache. Borrowed pointers; strides in BYTES, so that any block-major
/// layout fits: element (block b, head g, slot s, dim d) of K is at k + b*block_stride +
/// g*head_stride + s*token_stride + d*bytes_of(dtype).
struct PagedKv {
  std::byte* k = nullptr;         ///< K of block 0
  std::byte* v = nullptr;         ///< V of block 0
  std::int64_t block_stride = 0;  ///< bytes from one block to the next
  std::int64_t head_stride = 0;   ///< bytes from one kv head to the next
  std::int64_t token_stride = 0;  ///< bytes from one slot to the next
  std::int32_t G = 0, S = 0, D = 0;
  Dtype dtype = Dtype::bf16;
};
static_assert(std::is_trivially_copyable_v<PagedKv>);

}  // namespace kvhive
