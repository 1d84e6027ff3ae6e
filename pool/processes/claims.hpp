#pragma once
// Claims: which beginnings of prompts a process is computing. Another request that would compute
// the same looks here first, and waits instead (actors/block_manager/block_manager_state.hpp).
//
// A claim is one word at the place that the name determines: the rest of the name, and the slot of
// the process. So it is made and withdrawn by one instruction each, and two processes that come at
// once cannot both have it. If another name has the place, a process computes unclaimed: a claim
// saves work and protects nothing. The reaper withdraws the claims of a dead process; until then
// its slot has a process, and who waits must not wait for ever.

#include <optional>

#include "hashing/block_hash.hpp"
#include "pool/pool_memory.hpp"

namespace kvhive {

/// A claim that its process has made and not withdrawn.
struct Claim {
  std::uint32_t place = 0;
  std::uint64_t word = 0;
};

class Claims {
 public:
  Claims(const PoolMemory& memory, ProcessSlot self) : memory_(memory), self_(self) {}

  struct Answer {
    std::optional<Claim> claim;  ///< nothing if the place is another's
    /// The word of a claim of the same name, by whatever process; 0 = there is none.
    std::uint64_t taken_by = 0;
  };
  /// Claims the name. A claim whose slot has no process is taken over.
  ///
  /// \param instead_of  a claim's word that is taken over, too: its process does not get on
  Answer claim(Hash128 name, std::uint64_t instead_of = 0);
  void withdraw(const Claim& claim);
  /// Whether `word` still claims the name.
  bool is_claimed(Hash128 name, std::uint64_t word) const;

 private:
  const PoolMemory& memory_;
  ProcessSlot self_;
};

/// The slot that a word of ControlBlock::claims names; nothing if the word is no claim.
std::optional<ProcessSlot> claimed_by(std::uint64_t word);

/// Withdraws all claims of the slots in `slots`, a mask. Returns how many there were. For the
/// reaper and for repair.
std::size_t withdraw_claims(const PoolMemory& memory, std::uint32_t slots);

}  // namespace kvhive
