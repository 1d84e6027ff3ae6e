#pragma once
// Copies whole blocks: copy on write inside an arena, swap between arenas (vLLM: copy_blocks,
// swap_blocks).

#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace kvhive {

/// Physical indices inside their arenas (block id - first id of the tier).
struct BlockPair {
  std::uint32_t source = 0;
  std::uint32_t destination = 0;
};

struct BlockCopyArgs {
  const std::byte* source = nullptr;  ///< block 0 of the source arena
  std::byte* destination = nullptr;   ///< block 0 of the destination arena; may be the same arena
  std::size_t block_bytes = 0;
  /// [pairs_count]; no destination is also a source or named twice
  const BlockPair* pairs = nullptr;
  std::size_t pairs_count = 0;
};
static_assert(std::is_trivially_copyable_v<BlockCopyArgs>);

void block_copy_reference(const BlockCopyArgs& args);
/// All cores; non-temporal stores where a block is larger than the caches like.
void block_copy_cpu(const BlockCopyArgs& args);

}  // namespace kvhive
