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

/// How the elements of one block and head lie in memory.
enum class PageLayout : std::uint8_t {
  /// A token's D elements side by side, token_stride apart: HND (head by head, the default) or NHD
  /// (token by token), as the strides say.
  rows = 0,
  /// vLLM's: K [D/x][S][x] with x = 16 / bytes_of(dtype), V [D][S]. token_stride means nothing.
  x_packed = 1,
  /// For AMX, bf16 only: K [D/32][S/16][16 dim pairs][16 tokens][2], V [D/16][S/32][16 token
  /// pairs][16 dims][2], so that both are read as tiles in the order of memory; S is a multiple of
  /// 32, or 16 (then V [D/16][8 token pairs][16 dims][2]). token_stride means nothing.
  amx = 2,
};

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
