#pragma once
// Checks the pool's invariants, read-only, also while others work (what changes under the eye is
// not judged).

#include <string>
#include <vector>

#include "pool/pool_memory.hpp"

namespace kvhive {

struct FsckReport {
  std::vector<std::string> violations;  ///< each names the block and what is wrong; empty = clean
  std::uint64_t blocks_checked = 0;
  std::uint64_t ready = 0;
  /// Published, but the block before them is gone: unreachable until evicted.
  std::uint64_t orphans = 0;
  std::uint64_t unhinted = 0;  ///< published, but the index has lost them: a miss, no harm
  /// Token bytes whose hash was compared; 0 for an inspector without tokens.
  std::uint64_t bytes_checked = 0;
};

/// Invariants, by their numbers in ARCHITECTURE.md:
///  1 holder masks name attached processes; a free block has none, a filling one exactly one
///  2 every block is in exactly one known state
///  3 published blocks carry a complete identity, equal uids mean equal content
///  7 every index kept in shared memory is in range
FsckReport fsck(const PoolMemory& memory);

}  // namespace kvhive
