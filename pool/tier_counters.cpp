#include "pool/tier_counters.hpp"

#include "pool/kill_point.hpp"

namespace kvhive {
namespace {

std::int64_t held_blocks(const PoolMemory& memory, Tier tier) {
  const auto& layout = memory.tier_layout(tier);
  std::int64_t held = 0;
  for (std::uint32_t i = 0; i < layout.blocks; ++i) {
    const BlockDescriptor& d = memory.descriptors()[layout.first_block + i];
    held += BlockWord{d.word.load(std::memory_order_acquire)}.holders() != 0;
  }
  return held;
}

}  // namespace

void correct_used(const PoolMemory& memory, Tier tier) {
  ControlBlock& control = memory.control();
  for (int attempt = 0; attempt < 4; ++attempt) {
    const std::int64_t before = counted_used(control, tier);
    const std::int64_t truth = held_blocks(memory, tier);
    if (counted_used(control, tier) != before) continue;
    KV_KILL_POINT("reap.before_correction");
    control.tiers[std::size_t(tier)].used_correction.store(
        static_cast<std::int64_t>(static_cast<std::uint64_t>(truth) -
                                  static_cast<std::uint64_t>(before)),
        std::memory_order_relaxed);
    KV_KILL_POINT("reap.corrected");
    return;
  }
}

}  // namespace kvhive
