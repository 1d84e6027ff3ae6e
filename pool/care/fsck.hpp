#pragma once
// Checks the pool's invariants, read-only, also while other processes work. A block that changes
// while it is read is not judged, and every finding is checked a second time before it is reported.

#include <array>
#include <string>
#include <vector>

#include "pool/pool_memory.hpp"

namespace kvhive {

/// What the keeper knows about a process slot. (The keeper has the pidfds of all processes.)
struct SlotOwner {
  /// unswept: the slot's process is dead, and its blocks have not been released yet
  enum class Use : std::uint8_t { vacant, used, unswept };
  Use use = Use::vacant;
  std::uint32_t pid = 0;  ///< 0 = not known
};
using SlotOwners = std::array<SlotOwner, kMaxProcesses>;

/// live: processes may be working. quiescent: no process works, so a free block without a hint is a
/// violation.
enum class Moment : std::uint8_t { live, quiescent };

struct FsckReport {
  /// The first 100 violations. Each text names the block and what is wrong. Empty = clean.
  std::vector<std::string> violations;
  std::uint64_t violations_in_all = 0;
  std::uint64_t blocks_checked = 0;
  /// The checked blocks by state. Not counted: the null block, and blocks in an unknown state.
  std::uint64_t free = 0, filling = 0, held = 0, idle = 0, retired = 0;
  std::uint64_t ready = 0;  ///< held or idle
  /// Published blocks whose parent is gone: no match reaches them, and they stay until evicted.
  std::uint64_t orphans = 0;
  // Lost and stale hints are not violations: they cost a miss, a retry or a scan.
  std::uint64_t unhinted = 0;  ///< published blocks without a hint in the index
  /// Of these, copies of a block that has one: a bucket has no room for any number of them.
  std::uint64_t duplicates = 0;
  std::uint64_t stale_hints = 0;  ///< hints whose block is not published under their hash
  std::uint64_t unlisted = 0;     ///< free blocks that are not in the bitmap
  /// Domains with limits whose counted blocks differ from their blocks (pool/eviction/lanes.hpp).
  /// Not a violation either: while processes work, the two are not read at the same instant, and a
  /// dead process may not have counted its last change.
  std::uint64_t miscounted = 0;
  /// Token bytes whose hash was compared with the block's name; 0 without access to the tokens.
  std::uint64_t bytes_checked = 0;

  bool is_clean() const { return violations_in_all == 0; }
};

/// Checks these invariants, by their numbers in ARCHITECTURE.md:
///  1 holder masks name only attached processes; a free block has no holder, a filling block
///    exactly one; claims name only attached processes; with `owners`, the slot table names only
///    living processes
///  2 every block is in exactly one known state; the bitmap has every free block (when quiescent);
///    idle blocks have a place in the release order
///  3 published blocks have a complete identity: name, parent, depth and domain fit; equal uids
///    mean equal content; at most one hint leads to a block
///  7 every index kept in shared memory is in range
FsckReport fsck(const PoolMemory& memory, Moment moment = Moment::live,
                const SlotOwners* owners = nullptr);

}  // namespace kvhive
