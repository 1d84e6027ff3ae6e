#pragma once
// Makes the pool forget all cached contents, while engines run (vLLM: reset_prefix_cache): after
// that no lookup finds a block that was published before. Nothing is moved or freed. The blocks
// keep their places in the release order, as in vLLM, and lose their contents when they are taken.
// Sequences that run go on with the blocks they hold; what they publish is found by nobody.

#include <cstddef>

#include "pool/pool_memory.hpp"

namespace kvhive {

struct CacheReset {
  Resets resets;              ///< how often the cache has been reset, this time included
  std::size_t forgotten = 0;  ///< contents that were in the pool's blocks then and could be found
};

/// Two stores; a process that is killed between them has done nothing that is seen. Not by two
/// processes at once: the steward does it.
CacheReset reset_cache(const PoolMemory& memory);

}  // namespace kvhive
