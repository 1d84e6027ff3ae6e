#pragma once
// The truth about one block in one 64-bit word. Any process may read it at any moment, also when
// its writer has just been killed: every change is one atomic instruction, so a kill comes either
// before it or after it.
//
//   63 .. 36   generation   moves on each time the block is taken anew; shows that a reference is
//                           stale
//   34 .. 32   state
//   31 ..  0   holders      bit p = the process in slot p holds at least one reference
//
// How many references a process holds, it counts in its own memory; only the changes from none to
// one and from one to none touch the word. A shared count could not be repaired after a kill; a
// mask can: clear the dead process's bit, as often as needed.
//
// The word's changes, as tests/model/block_word.pml checks them:
//
//            taken_by             published_by            unpinned_by
//    free ------------> filling ----------------> ready <-------------> ready, held
//      ^                 |  ^                       |      pinned_by
//      |     freed       |  |       taken_by        |
//      '-----------------'  '-----------------------'  (no holders: idle)
//
//    any ---- retired ----> retired

#include <atomic>
#include <cstdint>
#include <string_view>

#include "base/ids.hpp"

namespace kvhive {

enum class BlockState : std::uint8_t {
  free = 0,     ///< no content, no holder; can be allocated
  filling = 1,  ///< exactly one holder, which may write it; no match finds it
  ready = 2,    ///< published: immutable until its generation moves on. Held by processes, or idle:
                ///< any process may evict it
  retired = 3,  ///< found corrupt; never allocated again
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

constexpr std::uint32_t holder_bit(ProcessSlot slot) { return 1u << slot.value; }

/// A process as a block's word knows it. A pool keeps its own: shifting the bit for each block
/// costs a twentieth of a release.
struct Holder {
  constexpr Holder(ProcessSlot slot) : bit(holder_bit(slot)) {}  // NOLINT: any slot is a holder
  std::uint32_t bit;
};

struct BlockWord {
  std::uint64_t bits = 0;

  static constexpr BlockWord make(BlockState state, std::uint64_t generation,
                                  std::uint32_t holders) {
    return {(generation & kGenerationMask) << 36 | std::uint64_t(state) << 32 | holders};
  }
  constexpr BlockState state() const { return BlockState(bits >> 32 & 7); }
  constexpr std::uint64_t generation() const { return bits >> 36; }
  constexpr std::uint32_t holders() const { return std::uint32_t(bits); }

  constexpr bool is_ready() const { return state() == BlockState::ready; }
  constexpr bool is_idle() const { return is_ready() && holders() == 0; }
  constexpr bool is_free() const { return state() == BlockState::free && holders() == 0; }
  constexpr bool is_held_by(Holder holder) const { return (holders() & holder.bit) != 0; }
  constexpr bool is_filled_by(Holder holder) const {
    return state() == BlockState::filling && holders() == holder.bit;
  }
  /// Both words are of one publication: what was read of the block in between belongs together.
  constexpr bool is_same_publication(BlockWord other) const {
    return is_ready() && other.is_ready() && generation() == other.generation();
  }

  // Changes: the word as it is afterwards. The caller stores it, or exchanges it for the word seen.

  /// From free or idle; the content before is gone.
  constexpr BlockWord taken_by(Holder holder) const {
    return make(BlockState::filling, generation() + 1, holder.bit);
  }
  /// From filling, by its holder.
  constexpr BlockWord published_by(Holder holder) const {
    return make(BlockState::ready, generation(), holder.bit);
  }
  constexpr BlockWord pinned_by(Holder holder) const { return {bits | holder.bit}; }
  constexpr BlockWord unpinned_by(Holder holder) const {
    return {bits & ~std::uint64_t{holder.bit}};
  }
  /// From filling, by its holder, or by the reaper once that is dead.
  constexpr BlockWord freed() const { return make(BlockState::free, generation(), 0); }
  /// Out of service for good. References that other processes still count become stale.
  constexpr BlockWord retired() const { return make(BlockState::retired, generation() + 1, 0); }

  friend constexpr bool operator==(BlockWord, BlockWord) = default;

  static constexpr std::uint64_t kGenerationMask = (1ull << 28) - 1;
  // Bits that no process ever sets: one between state and generation, and the holder bit of
  // slot 31.
  static constexpr std::uint64_t kSpareBit = 1ull << 35;
  static constexpr std::uint64_t kUnusedBits = kSpareBit | 1ull << kMaxProcesses;
};

/// The null block is set aside when the pool is formatted.
inline constexpr BlockWord kNullBlockWord = BlockWord::make(BlockState::retired, 0, 0);

/// A block that a hint led to, and the word it had then. A process takes the block by exchanging
/// that very word.
struct Candidate {
  BlockId block;
  BlockWord word;
};

static_assert(std::atomic<std::uint64_t>::is_always_lock_free, "shared between processes");

}  // namespace kvhive
