#include "pool/care/pool_report.hpp"

#include <bit>
#include <cstdio>

namespace kvhive {
namespace {

void count(TierReport& tier, BlockWord word) {
  ++tier.blocks;
  switch (word.state()) {
    case BlockState::free: ++tier.free; break;
    case BlockState::filling: ++tier.filling; break;
    case BlockState::ready:
      ++(word.holders() == 0 ? tier.idle : tier.held);
      tier.shared += std::popcount(word.holders()) > 1;
      break;
    default: ++tier.retired;
  }
}

ProcessReport report_process(const ProcessEntry& entry, std::uint32_t slot) {
  const auto get = [](const auto& counter) { return counter.load(std::memory_order_relaxed); };
  const SlotCounters& c = entry.counters;
  ProcessReport process;
  process.slot = slot;
  process.pid = get(entry.pid);
  process.index = get(entry.index);
  process.started = get(entry.started);
  process.queried_blocks = get(c.queried_blocks);
  process.hit_blocks = get(c.hit_blocks);
  process.allocated_blocks = get(c.allocated_blocks);
  process.evicted_blocks = get(c.evicted_blocks);
  process.published_blocks = get(c.published_blocks);
  process.demoted_blocks = get(c.demoted_blocks);
  process.promoted_blocks = get(c.promoted_blocks);
  process.preemptions_recompute = get(c.preemptions_recompute);
  process.preemptions_swap = get(c.preemptions_swap);
  process.prompt_tokens = get(c.prompt_tokens);
  process.cached_tokens = get(c.cached_tokens);
  process.generated_tokens = get(c.generated_tokens);
  process.running = get(c.running);
  process.waiting = get(c.waiting);
  return process;
}

}  // namespace

PoolReport report_pool(const PoolMemory& memory) {
  PoolReport report;
  report.geometry = memory.geometry();
  for (const std::uint64_t half : memory.control().header.epoch_uuid) {
    char hex[17];
    std::snprintf(hex, sizeof hex, "%016llx", static_cast<unsigned long long>(half));
    report.epoch += hex;
  }
  std::array<std::array<std::uint64_t, kTiers>, 32> held{};
  for (std::uint32_t id = 1; id < memory.geometry().total_blocks(); ++id) {
    const BlockWord word{memory.descriptors()[id].word.load(std::memory_order_acquire)};
    const auto tier = std::size_t(memory.tier_of(BlockId{id}));
    count(report.tiers[tier], word);
    for (std::uint32_t mask = word.holders(); mask != 0; mask &= mask - 1)
      ++held[std::countr_zero(mask)][tier];
  }
  for (std::uint32_t slot = 0; slot < kMaxProcesses; ++slot) {
    const ProcessEntry& entry = memory.control().processes[slot];
    if (entry.pid.load(std::memory_order_acquire) == 0) continue;
    report.processes.push_back(report_process(entry, slot));
    report.processes.back().held_blocks = held[slot];
  }
  return report;
}

std::vector<BlockReport> report_blocks(const PoolMemory& memory) {
  std::vector<BlockReport> blocks;
  constexpr auto relaxed = std::memory_order_relaxed;
  for (std::uint32_t id = 1; id < memory.geometry().total_blocks(); ++id) {
    const BlockDescriptor& d = memory.descriptors()[id];
    blocks.push_back({id, memory.tier_of(BlockId{id}),
                      BlockWord{d.word.load(std::memory_order_acquire)}, d.uid.load(relaxed),
                      d.parent_uid.load(relaxed), d.stamp.load(relaxed), d.depth.load(relaxed),
                      d.domain.load(relaxed)});
  }
  return blocks;
}

}  // namespace kvhive
