#include "pool/tier_counters.hpp"

#include <optional>

#include "base/kill_point.hpp"

namespace kvhive {
namespace {

/// Counts the held blocks. Returns nothing as soon as the sum over all slots differs from `sum`:
/// then another process has worked meanwhile, and the count is useless.
std::optional<std::int64_t> held_blocks(const PoolMemory& memory, Tier tier, std::int64_t sum) {
  constexpr std::uint32_t kBetweenChecks = 1024;
  const auto& layout = memory.tier_layout(tier);
  std::int64_t held = 0;
  for (std::uint32_t i = 0; i < layout.blocks; ++i) {
    held += memory.block(BlockId{layout.first_block + i}).word().holders() != 0;
    if (i % kBetweenChecks == 0 && counted_used(memory.control(), tier) != sum) return std::nullopt;
  }
  return held;
}

}  // namespace

bool correct_used(ControlBlock& control, Tier tier, std::int64_t sum_before, std::int64_t truth) {
  if (counted_used(control, tier) != sum_before) return false;
  KV_KILL_POINT("reap.before_correction");
  control.tiers[std::size_t(tier)].used_correction.store(
      static_cast<std::int64_t>(static_cast<std::uint64_t>(truth) -
                                static_cast<std::uint64_t>(sum_before)),
      std::memory_order_relaxed);
  KV_KILL_POINT("reap.corrected");
  return true;
}

void correct_used(const PoolMemory& memory, Tier tier) {
  for (int attempt = 0; attempt < 4; ++attempt) {
    const std::int64_t sum = counted_used(memory.control(), tier);
    const auto truth = held_blocks(memory, tier, sum);
    if (truth && correct_used(memory.control(), tier, sum, *truth)) return;
  }
}

}  // namespace kvhive
