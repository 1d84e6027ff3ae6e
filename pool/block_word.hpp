#pragma once
// The truth about one block in one 64-bit word. Any process may read it at any moment, also the
// moment its writer is killed; every change is one atomic instruction, so there is nothing in
// between to be killed at.
//
//   63 .. 36   generation   moves on each time the block is given out anew; tells stale references
//   34 .. 32   state
//   31 ..  0   holders      bit p = the process in slot p holds at least one reference
//
// How many references a process holds is its private business: only its 0->1 and 1->0 transitions
// touch the word. A shared count could not be repaired after a kill; a mask can: clear the dead
// process' bit, as often as you like.

#include <atomic>
#include <cstdint>
#include <string_view>

#include "base/ids.hpp"

namespace kvhive {

enum class BlockState : std::uint8_t {
  free = 0,     ///< no content, no holder; to be had
  filling = 1,  ///< exactly one holder, who may write it; nobody finds it
  ready = 2,    ///< published: immutable until its generation moves on; held by some, or idle and
                ///< evictable by all
  retired = 3,  ///< found damaged; never handed out again
};

constexpr std::string_view to_string(BlockState state) {
  switch (state) {
    case BlockState::free: return "free";
    case BlockState::filling: return "filling";
    case BlockState::ready: return "ready";
    case BlockState::retired: return "retired";
  }
  return "damaged";
}

inline constexpr std::uint32_t kMaxProcesses = 31;

struct BlockWord {
  std::uint64_t bits = 0;

  static constexpr BlockWord make(BlockState state, std::uint64_t generation,
                                  std::uint32_t holders) {
    return {(generation & kGenerationMask) << 36 | std::uint64_t(state) << 32 | holders};
  }
  constexpr BlockState state() const { return BlockState(bits >> 32 & 7); }
  constexpr std::uint64_t generation() const { return bits >> 36; }
  constexpr std::uint32_t holders() const { return std::uint32_t(bits); }
  constexpr bool is_idle() const { return state() == BlockState::ready && holders() == 0; }

  friend constexpr bool operator==(BlockWord, BlockWord) = default;

  static constexpr std::uint64_t kGenerationMask = (1ull << 28) - 1;
};

/// A block a hint led to, and the word it was seen with: whoever takes it does so by a CAS against
/// that word.
struct Candidate {
  BlockId block;
  BlockWord word;
};

constexpr std::uint32_t holder_bit(ProcessSlot slot) { return 1u << slot.value; }

static_assert(std::atomic<std::uint64_t>::is_always_lock_free, "shared between processes");

}  // namespace kvhive
