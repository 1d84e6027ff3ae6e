#include "pool/care/pool_report.hpp"

#include <algorithm>
#include <bit>
#include <cstdio>
#include <utility>

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
    default: ++tier.retired;  // a corrupt state counts as retired, so that the sum is right
  }
}

/// What the slot's process has counted since it signed in. The value at its sign-in is read first,
/// so the difference is not negative, not even of a slot that gets its next process meanwhile; but
/// of a counter that is corrupt, it is 0 then.
template <std::size_t n>
std::uint64_t since_sign_in(const std::array<std::atomic<std::uint64_t>, n>& at_sign_in,
                            const std::array<std::atomic<std::uint64_t>, n>& now, std::size_t i) {
  const std::uint64_t before = at_sign_in[i].load(std::memory_order_acquire);
  const std::uint64_t value = now[i].load(relaxed);
  return value - std::min(before, value);
}

ProcessReport report_process(const ProcessEntry& entry, std::uint32_t slot) {
  ProcessReport process;
  process.slot = slot;
  process.pid = entry.pid.load(relaxed);
  process.index = entry.index.load(relaxed);
  process.started = entry.started.load(relaxed);
  for (std::size_t i = 0; i < kCounters.size(); ++i)
    process.counted.values[i] = kCounters[i].kind == CounterKind::gauge
                                    ? entry.counters.values[i].load(relaxed)
                                    : since_sign_in(entry.at_sign_in, entry.counters.values, i);
  for (std::size_t i = 0; i < kAllHistogramCells; ++i)
    process.observed.cells[i] = since_sign_in(entry.cells_at_sign_in, entry.counters.cells, i);
  return process;
}

}  // namespace

BlockCounts count_blocks(const PoolMemory& memory) {
  BlockCounts counts;
  const PoolGeometry& geometry = memory.geometry();
  DomainId last{};
  std::array<DomainBlocks, kTiers>* of_last = nullptr;  // most blocks' neighbours are of one domain
  for (std::uint32_t id = 1; id < geometry.total_blocks(); ++id) {
    const BlockView block = memory.block(BlockId{id});
    const BlockWord word = block.word();
    const auto tier = std::size_t(memory.tier_of(BlockId{id}));
    count(counts.tiers[tier], word);
    if (word.is_idle()) counts.tiers[tier].forgotten += memory.is_forgotten(block);
    for (std::uint32_t mask = word.holders(); mask != 0; mask &= mask - 1)
      ++counts.held[std::countr_zero(mask)][tier];
    if (word.state() != BlockState::ready && word.state() != BlockState::filling) continue;
    const DomainId domain = block.domain();
    if (of_last == nullptr || domain != last) of_last = &counts.domains[domain];
    last = domain;
    DomainBlocks& of_domain = (*of_last)[tier];
    ++(word.is_idle() ? of_domain.idle : of_domain.held);
    if (!word.is_ready()) continue;  // whose group it will be of is not written down yet
    DomainBlocks& of_model = counts.models[geometry.model_of(block.group()).value][tier];
    ++(word.is_idle() ? of_model.idle : of_model.held);
  }
  return counts;
}

Statistics read_statistics(const PoolMemory& memory) {
  Statistics statistics;
  for (std::uint32_t slot = 0; slot < kMaxProcesses; ++slot) {
    // Vacant slots are in the totals, too: processes that are dead now have counted there.
    const ProcessEntry& entry = memory.control().processes[slot];
    for (std::size_t i = 0; i < kCounters.size(); ++i)
      statistics.totals.values[i] += entry.counters.values[i].load(relaxed);
    for (std::size_t i = 0; i < kAllHistogramCells; ++i)
      statistics.observed.cells[i] += entry.counters.cells[i].load(relaxed);
    if (entry.pid.load(std::memory_order_acquire) != 0)
      statistics.processes.push_back(report_process(entry, slot));
  }
  return statistics;
}

std::string epoch_of(const PoolMemory& memory) {
  std::string epoch;
  for (const std::uint64_t half : memory.control().header.epoch_uuid) {
    char hex[17];
    std::snprintf(hex, sizeof hex, "%016llx", static_cast<unsigned long long>(half));
    epoch += hex;
  }
  return epoch;
}

PoolReport report_pool(const PoolMemory& memory) {
  BlockCounts blocks = count_blocks(memory);
  Statistics statistics = read_statistics(memory);
  for (ProcessReport& process : statistics.processes)
    process.held_blocks = blocks.held[process.slot];
  return {memory.geometry(),
          epoch_of(memory),
          memory.resets().value,
          blocks.tiers,
          std::move(blocks.domains),
          blocks.models,
          std::move(statistics.processes),
          statistics.totals,
          statistics.observed};
}

std::map<DomainId, DomainReport> report_domains(const PoolMemory& memory) {
  std::map<DomainId, DomainReport> domains;
  for (std::uint16_t i = 0; i < memory.geometry().limited_domains(); ++i)
    if (const BlockLimits limits = memory.geometry().limits[i]; limits != BlockLimits{})
      domains[DomainId{i}].limits = limits;
  for_each_block(memory, [&](const BlockReport& b) {
    if (b.word.state() != BlockState::ready && b.word.state() != BlockState::filling) return;
    DomainReport& of_domain = domains[b.domain];
    ++(b.word.is_idle() ? of_domain.idle : of_domain.held);
    of_domain.device_resident += b.tier == Tier::device;
    of_domain.device_held += b.tier == Tier::device && !b.word.is_idle();
  });
  return domains;
}

}  // namespace kvhive
