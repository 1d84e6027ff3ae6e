#pragma once
// Copies blocks, whole or in part: copy on write inside an arena, swap between arenas, gather into
// a staging buffer and scatter out of it (vLLM: copy_blocks, swap_blocks).

#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>

namespace kvhive {

/// Physical indices inside their arenas (block id - first id of the tier).
struct BlockPair {
  std::uint32_t source = 0;
  std::uint32_t destination = 0;
};

struct BlockCopyArgs {
  const std::byte* source = nullptr;  ///< (the part of) block 0 in the source arena
  std::byte* destination = nullptr;   ///< of block 0 in the destination arena; may be the same
  std::size_t bytes = 0;              ///< of each (part of a) block
  std::size_t source_stride = 0;      ///< bytes from one block to the next, at least `bytes`
  std::size_t destination_stride = 0;
  /// [pairs_count]; no destination is also a source or named twice
  const BlockPair* pairs = nullptr;
  std::size_t pairs_count = 0;
};
static_assert(std::is_trivially_copyable_v<BlockCopyArgs>);

/// Blocks side by side in both arenas.
inline BlockCopyArgs whole_blocks(const std::byte* source, std::byte* destination,
                                  std::size_t block_bytes, std::span<const BlockPair> pairs) {
  return {source, destination, block_bytes, block_bytes, block_bytes, pairs.data(), pairs.size()};
}

void block_copy_reference(const BlockCopyArgs& args);
/// All cores; non-temporal stores where a block is larger than the caches like.
void block_copy_cpu(const BlockCopyArgs& args);

}  // namespace kvhive
