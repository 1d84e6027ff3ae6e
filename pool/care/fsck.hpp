#pragma once
// Checks the pool's invariants, read-only, also while other processes work: what changes while it
// is read is not judged, and every finding is checked a second time before it is reported.

#include <array>
#include <string>
#include <vector>

#include "pool/pool_memory.hpp"

namespace kvhive {

/// What the keeper, which holds the pidfds of all processes, knows of a process slot.
struct SlotOwner {
  /// unswept: its process is dead, its blocks not yet returned
  enum class Use : std::uint8_t { vacant, used, unswept };
  Use use = Use::vacant;
  std::uint32_t pid = 0;  ///< 0 = not known
};
using SlotOwners = std::array<SlotOwner, kMaxProcesses>;

/// quiescent: no process works, so a missing hint is a violation.
enum class Moment : std::uint8_t { live, quiescent };

struct FsckReport {
  /// Each names the block and what is wrong; empty = clean. The first hundred.
  std::vector<std::string> violations;
  std::uint64_t violations_in_all = 0;
  std::uint64_t blocks_checked = 0;
  /// Their sum, with the violations of invariant 2, is blocks_checked (without the null block).
  std::uint64_t free = 0, filling = 0, held = 0, idle = 0, retired = 0;
  std::uint64_t ready = 0;  ///< held or idle
  /// Published, but the block before it is gone: no match reaches it until it is evicted.
  std::uint64_t orphans = 0;
  // Lost and stale hints are no violations: they cost a miss, a retry or a scan.
  std::uint64_t unhinted = 0;     ///< published, but the index has lost them
  std::uint64_t stale_hints = 0;  ///< the index names a block that holds something else
  std::uint64_t unlisted = 0;     ///< free, but not in the bitmap
  /// Token bytes whose hash was compared with the block's name; 0 without access to the tokens.
  std::uint64_t bytes_checked = 0;

  bool is_clean() const { return violations_in_all == 0; }
};

/// Invariants, by their numbers in ARCHITECTURE.md:
///  1 holder masks name attached processes; a free block has none, a filling one exactly one; with
///    `owners`, the slot table names living processes
///  2 every block is in exactly one known state; free blocks can be found (when quiescent), idle
///    blocks have a place in the release order
///  3 published blocks carry a complete identity: name, parent, depth and domain fit; equal uids
///    mean equal content; at most one hint leads to a block
///  7 every index kept in shared memory is in range
FsckReport fsck(const PoolMemory& memory, Moment moment = Moment::live,
                const SlotOwners* owners = nullptr);

}  // namespace kvhive
