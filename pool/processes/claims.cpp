#include "pool/processes/claims.hpp"

#include "base/kill_point.hpp"

namespace kvhive {
namespace {

/// A claim's word: a part of the name, the slot, and 1. So 0 is no claim.
constexpr unsigned kClaimSlotShift = 1, kNameShift = 6;
static_assert(kMaxProcesses <= 1u << (kNameShift - kClaimSlotShift));

std::uint64_t word_of(Hash128 name, ProcessSlot slot) {
  return name.low << kNameShift | std::uint64_t{slot.value} << kClaimSlotShift | 1;
}

std::uint32_t place_of(Hash128 name) { return static_cast<std::uint32_t>(name.high % kClaims); }

}  // namespace

std::optional<ProcessSlot> claimed_by(std::uint64_t word) {
  if ((word & 1) == 0) return std::nullopt;
  return ProcessSlot{static_cast<std::uint32_t>(word >> kClaimSlotShift & 31)};
}

Claims::Answer Claims::claim(Hash128 name, std::uint64_t instead_of) {
  const std::uint32_t place = place_of(name);
  auto& claim = memory_.control().claims[place];
  const std::uint64_t word = word_of(name, self_);
  std::uint64_t seen = claim.load(std::memory_order_relaxed);
  while (true) {
    const auto owner = claimed_by(seen);
    const bool has_owner =
        owner && owner->value < kMaxProcesses &&
        memory_.control().processes[owner->value].pid.load(std::memory_order_relaxed) != 0;
    if (has_owner && seen != instead_of) {
      const bool is_same = seen >> kNameShift == word >> kNameShift;
      return {std::nullopt, is_same ? seen : 0};
    }
    KV_KILL_POINT("claim.before");
    if (claim.compare_exchange_weak(seen, word, std::memory_order_relaxed)) break;
  }
  KV_KILL_POINT("claim.made");
  return {Claim{place, word}};
}

bool Claims::is_claimed(Hash128 name, std::uint64_t word) const {
  return memory_.control().claims[place_of(name)].load(std::memory_order_relaxed) == word;
}

/// By comparison: another process may have taken the claim over.
void Claims::withdraw(const Claim& claim) {
  std::uint64_t ours = claim.word;
  KV_KILL_POINT("claim.before_withdrawal");
  memory_.control().claims[claim.place].compare_exchange_strong(ours, 0, std::memory_order_relaxed);
  KV_KILL_POINT("claim.withdrawn");
}

std::size_t withdraw_claims(const PoolMemory& memory, std::uint32_t slots) {
  std::size_t count = 0;
  for (auto& claim : memory.control().claims) {
    std::uint64_t word = claim.load(std::memory_order_relaxed);
    const auto owner = claimed_by(word);
    if (!owner || (slots >> owner->value & 1) == 0) continue;
    KV_KILL_POINT("reap.before_a_claim");
    count += claim.compare_exchange_strong(word, 0, std::memory_order_relaxed);
  }
  return count;
}

}  // namespace kvhive
