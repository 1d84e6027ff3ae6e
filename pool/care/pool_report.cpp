#include "pool/care/pool_report.hpp"

#include <bit>
#include <cstdio>

namespace kvhive {
namespace {

constexpr auto relaxed = std::memory_order_relaxed;

void count(TierReport& tier, BlockWord word) {
  ++tier.blocks;
  switch (word.state()) {
    case BlockState::free: ++tier.free; break;
    case BlockState::filling: ++tier.filling; break;
    case BlockState::ready:
      ++(word.holders() == 0 ? tier.idle : tier.held);
      tier.shared += std::popcount(word.holders()) > 1;
      break;
    default: ++tier.retired;  // a corrupt state counts as retired, so that the sum is right
  }
}

/// What the slot's process has counted since it signed in. If a counter is corrupt, the difference
/// wraps.
CounterValues counted_since_sign_in(const ProcessEntry& entry) {
  CounterValues counted;
  for (std::size_t i = 0; i < kCounters.size(); ++i) {
    counted.values[i] = entry.counters.values[i].load(relaxed);
    if (kCounters[i].kind == CounterKind::sum)
      counted.values[i] -= entry.at_sign_in[i].load(relaxed);
  }
  return counted;
}

/// The sum over all slots, vacant ones included, since processes that are dead now have counted
/// there.
CounterValues totals_of(const ControlBlock& control) {
  CounterValues totals;
  for (const ProcessEntry& entry : control.processes)
    for (std::size_t i = 0; i < kCounters.size(); ++i)
      totals.values[i] += entry.counters.values[i].load(relaxed);
  return totals;
}

ProcessReport report_process(const ProcessEntry& entry, std::uint32_t slot) {
  ProcessReport process;
  process.slot = slot;
  process.pid = entry.pid.load(relaxed);
  process.index = entry.index.load(relaxed);
  process.started = entry.started.load(relaxed);
  process.counted = counted_since_sign_in(entry);
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
    const BlockWord word = memory.block(BlockId{id}).word();
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
  report.totals = totals_of(memory.control());
  return report;
}

std::vector<BlockReport> report_blocks(const PoolMemory& memory) {
  std::vector<BlockReport> blocks;
  for (std::uint32_t id = 1; id < memory.geometry().total_blocks(); ++id) {
    const BlockView b = memory.block(BlockId{id});
    blocks.push_back({BlockId{id}, memory.tier_of(BlockId{id}), b.word(), b.uid(), b.parent_uid(),
                      b.stamp(), b.depth(), b.domain()});
  }
  return blocks;
}

}  // namespace kvhive
