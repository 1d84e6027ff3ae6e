#pragma once
// Copies blocks or parts of blocks: copy on write inside one arena, swap between two arenas, gather
// into a staging buffer and scatter out of it (vLLM: copy_blocks, swap_blocks).

#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>

namespace kvhive {

/// Indices of two blocks, each inside its own arena: block id minus the first id of the tier. Not
/// BlockIds, since a swap's two arenas count from 0 each.
struct BlockPair {
  std::uint32_t source = 0;
  std::uint32_t destination = 0;
};

struct BlockCopyArgs {
  const std::byte* source = nullptr;  ///< block 0 of the source arena, or the part of it to copy
  std::byte* destination =
      nullptr;            ///< the same in the destination arena, which may be the source arena
  std::size_t bytes = 0;  ///< to copy of each block
  std::size_t source_stride = 0;  ///< bytes from one block to the next, at least `bytes`
  std::size_t destination_stride = 0;
  /// [pairs_count]. No block is the destination of two pairs, or of one and the source of another.
  const BlockPair* pairs = nullptr;
  std::size_t pairs_count = 0;
};
static_assert(std::is_trivially_copyable_v<BlockCopyArgs>);

/// Whole blocks of two arenas in which each block begins where the one before it ends.
inline BlockCopyArgs whole_blocks(const std::byte* source, std::byte* destination,
                                  std::size_t block_bytes, std::span<const BlockPair> pairs) {
  return {source, destination, block_bytes, block_bytes, block_bytes, pairs.data(), pairs.size()};
}

void block_copy_reference(const BlockCopyArgs& args);
/// Uses all cores; non-temporal stores for blocks too large to stay in the caches.
void block_copy_cpu(const BlockCopyArgs& args);

}  // namespace kvhive
