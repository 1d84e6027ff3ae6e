#pragma once
// The truth about one block in one 64-bit word. Any process may read it at any moment, also when
// its writer has just been killed: every change is one atomic instruction, so a kill comes either
// before it or after it.
//
//   63 .. 36   generation   grows by 1 each time the block is taken, and comes round after 2^28;
//                           shows that a reference is stale
//   35         hit          of a ready block, if the pool's eviction policy asks for it: it was hit
//                           since it was published, or since it was spared for that
//   34 .. 32   state
//   31 ..  0   holders      bit p = the process in slot p holds at least one reference
//
// Each process counts its references to a block in its own memory. It changes the word only when
// this count goes from 0 to 1 or from 1 to 0. A shared count could not be repaired after a kill; a
// mask can be: the reaper clears the dead process's bit, any number of times.
//
// The word's changes, as tests/model/block_word.pml checks them:
//
//            taken_by             published_by            unpinned_by
//    free ------------> filling ----------------> ready <-------------> ready, held
//      ^                 |  ^                       |      pinned_by
//      |     freed       |  |       taken_by        |
//      '-----------------'  '-----------------------'  (no holders: idle; spared clears `hit`)
//
//    any ---- retired ----> retired

#include <atomic>
#include <cstdint>
#include <string_view>

#include "base/ids.hpp"
#include "config/choices.hpp"

namespace kvhive {

enum class BlockState : std::uint8_t {
  free = 0,     ///< no content, no holder; can be allocated
  filling = 1,  ///< exactly one holder, which may write it; no match finds it
  ready = 2,    ///< published: immutable until it is taken again. Without holders it is idle: any
                ///< process may evict it
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

/// A process's holder bit in block words. A BlockPool computes its own bit once, because a shift
/// for each block would take a twentieth of the time of a release.
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
  /// Whether both words are ready and of one generation. Then they are of one publication, unless
  /// the generation has come round in between; the block's serial tells (pool/block_view.hpp).
  constexpr bool is_same_generation(BlockWord other) const {
    return is_ready() && other.is_ready() && generation() == other.generation();
  }

  // Changes. Each returns the word after the change; the caller stores it, or exchanges the word
  // that it has seen for it.

  /// From free or idle to filling; the old content is lost.
  constexpr BlockWord taken_by(Holder holder) const {
    return make(BlockState::filling, generation() + 1, holder.bit);
  }
  /// From filling to ready. Only the block's holder does this.
  constexpr BlockWord published_by(Holder holder) const {
    return make(BlockState::ready, generation(), holder.bit);
  }
  constexpr BlockWord pinned_by(Holder holder) const { return {bits | holder.bit}; }
  constexpr bool is_hit() const { return (bits & kHit) != 0; }
  /// An idle block that was to be evicted, and stays since it was hit.
  constexpr BlockWord spared() const { return {bits & ~kHit}; }
  constexpr BlockWord unpinned_by(Holder holder) const {
    return {bits & ~std::uint64_t{holder.bit}};
  }
  /// From filling to free. The block's holder does this, or the reaper once the holder is dead.
  constexpr BlockWord freed() const { return make(BlockState::free, generation(), 0); }
  /// To retired, for good. References that processes still count become stale.
  constexpr BlockWord retired() const { return make(BlockState::retired, generation() + 1, 0); }

  friend constexpr bool operator==(BlockWord, BlockWord) = default;

  static constexpr std::uint64_t kGenerationMask = (1ull << 28) - 1;
  static constexpr std::uint64_t kHit = 1ull << 35;
  /// A bit that no process ever sets: it would be the holder bit of a slot 31.
  static constexpr std::uint64_t kUnusedBit = 1ull << kMaxProcesses;
  /// Those of the word's bits that nobody has set, in a pool of this policy.
  constexpr std::uint64_t stray_bits(EvictionPolicy policy) const {
    const bool may_be_hit = is_ready() && policy == EvictionPolicy::second_chance;
    return bits & (kUnusedBit | (may_be_hit ? 0 : kHit));
  }
};

/// The null block's word. The block is retired when the pool is formatted, so that it is never
/// allocated.
inline constexpr BlockWord kNullBlockWord = BlockWord::make(BlockState::retired, 0, 0);

/// A block that a hint led to, and the word that it had then. A process takes the block only if it
/// still has this word (compare and exchange). If the generation has come round in between, the
/// word is equal although the block was taken meanwhile. That is harmless: the block is free or
/// idle again, and the process uses nothing that it read from the block before the exchange. At
/// worst it evicts the block before its turn.
struct Candidate {
  BlockId block;
  BlockWord word;
};

static_assert(std::atomic<std::uint64_t>::is_always_lock_free, "shared between processes");

}  // namespace kvhive
