#pragma once
// The word of a channel's slot: which request of the client it is about, how far that is, and which
// engine has it. Every serving engine has every channel. An engine takes a request by a
// compare-and-swap of this word, and only then writes anything else of the slot:
//
//   finished ----> reading -> taking <-> waiting -> running <-> preempted
//      ^                        ^ |         | any of a dead engine, and what waits at another
//      '------------------------|-+---------+----------------------------'
//
//  - reading: the engine copies the request out of the client's file. The slot's other fields are
//    still those of the request before.
//  - taking: the engine's copy is complete. It reads the prompt, tokenises it, or ends the request.
//  - waiting: for its turn. Any other engine may take it from here.
//  - running, preempted: it stays with this engine until the engine dies.
//  - finished: the slot is the client's.
// Modelled in tests/model/ownership.pml.

#include <atomic>
#include <cstdint>

#include "base/ids.hpp"

namespace kvhive {

/// One process that has been an engine: its process slot in the pool, and how many engines had that
/// slot before and with it (1, 2, ...). No two processes of a daemon ever have the same.
struct EngineLife {
  std::uint32_t slot = 0;
  std::uint32_t life = 0;  ///< 0 = nobody
  friend bool operator==(const EngineLife&, const EngineLife&) = default;
};
/// After this many lives the count of a slot begins again at 1.
inline constexpr std::uint32_t kMostLives = (1u << 20) - 1;
constexpr std::uint32_t next_life(std::uint32_t life) { return life % kMostLives + 1; }
static_assert(kMaxProcesses <= 256);

enum class Phase : std::uint8_t { finished, reading, taking, waiting, running, preempted };

struct alignas(8) SlotState {  // else clang calls a library for its atomic
  std::uint32_t number = 0;    ///< of the client's requests in this slot; 0 = none was taken yet
  std::uint32_t owner_and_phase = 0;

  static constexpr SlotState of(std::uint32_t number, Phase phase, EngineLife owner) {
    return {number, owner.life << 12 | owner.slot << 4 | std::uint32_t(phase)};
  }
  constexpr Phase phase() const { return Phase(owner_and_phase & 0xf); }
  constexpr EngineLife owner() const {
    return {owner_and_phase >> 4 & 0xff, owner_and_phase >> 12};
  }
  constexpr SlotState in(Phase phase) const {
    return {number, (owner_and_phase & ~0xfu) | std::uint32_t(phase)};
  }
  /// Whether the slot's tokens and statistics are of the request `number`.
  constexpr bool has_answer_to(std::uint32_t wanted) const {
    return number == wanted && phase() != Phase::reading;
  }
  friend bool operator==(const SlotState&, const SlotState&) = default;
};
static_assert(std::atomic<SlotState>::is_always_lock_free);

}  // namespace kvhive
