#pragma once
// The state of the pool in numbers. Only reads, and works whether other processes are running,
// stopped or dead.

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "pool/pool_memory.hpp"

namespace kvhive {

struct TierReport {
  std::uint64_t blocks = 0;   ///< without the null block
  std::uint64_t free = 0;     ///< no content
  std::uint64_t filling = 0;  ///< being computed
  std::uint64_t held = 0;     ///< published, and held by at least one process
  std::uint64_t shared = 0;   ///< published, and held by at least two processes
  std::uint64_t idle = 0;     ///< published, and held by no process: can be evicted
  std::uint64_t retired = 0;
  /// Of the idle ones, those that nobody finds any more: the prefix cache was reset.
  std::uint64_t forgotten = 0;

  /// Blocks of which a prompt could be continued, and that nobody uses.
  std::uint64_t cached() const { return idle - forgotten; }
};

struct ProcessReport {
  std::uint32_t slot = 0;
  std::uint32_t pid = 0;
  std::uint32_t index = 0;
  std::int64_t started = 0;
  std::array<std::uint64_t, kTiers> held_blocks{};
  CounterValues counted;     ///< by this process alone, since it signed in
  HistogramValues observed;  ///< the same
};

/// Blocks with content of one domain or model, or being filled for it, in one tier.
struct DomainBlocks {
  std::uint64_t held = 0;  ///< or being filled
  std::uint64_t idle = 0;
};

struct BlockReport {
  BlockId id;
  Tier tier = Tier::device;
  BlockWord word;
  std::uint64_t uid = 0, parent_uid = 0, stamp = 0;
  std::uint32_t depth = 0;
  DomainId domain{};
  GroupId group{};
};

/// What the blocks' descriptors say.
struct BlockCounts {
  std::array<TierReport, kTiers> tiers;
  /// How many blocks each process slot holds. There is one more, which a corrupt word may name.
  std::array<std::array<std::uint64_t, kTiers>, kMaxProcesses + 1> held{};
  /// By number, those only of which there is a block.
  std::map<DomainId, std::array<DomainBlocks, kTiers>> domains;
  /// By ModelId: those with published content.
  std::array<std::array<DomainBlocks, kTiers>, kMostModels> models{};
};
/// \cost  reads every descriptor: some 6 ms for a million blocks
BlockCounts count_blocks(const PoolMemory& memory);

/// What the processes' slots say.
struct Statistics {
  std::vector<ProcessReport> processes;  ///< attached now; without their held blocks
  CounterValues totals;                  ///< counted by all processes, dead ones included
  HistogramValues observed;              ///< the same
};
/// \cost  reads the slots only
Statistics read_statistics(const PoolMemory& memory);

struct PoolReport {
  PoolGeometry geometry;
  std::string epoch;         ///< hex
  std::uint32_t resets = 0;  ///< of the prefix cache, so far
  std::array<TierReport, kTiers> tiers;
  std::map<DomainId, std::array<DomainBlocks, kTiers>> domains;
  std::array<std::array<DomainBlocks, kTiers>, kMostModels> models{};  ///< by ModelId
  std::vector<ProcessReport> processes;                                ///< attached now
  CounterValues totals;      ///< counted by all processes, dead ones included
  HistogramValues observed;  ///< the same
};

/// Blocks with content of one domain, or being filled for it.
struct DomainReport {
  std::uint64_t held = 0, idle = 0;  ///< in both tiers
  std::uint64_t device_resident = 0,
                device_held = 0;  ///< in the device tier, to which limits apply
  BlockLimits limits;
};

PoolReport report_pool(const PoolMemory& memory);
std::string epoch_of(const PoolMemory& memory);  ///< hex

/// The domains that have blocks or limits.
std::map<DomainId, DomainReport> report_domains(const PoolMemory& memory);

inline BlockReport report_block(const PoolMemory& memory, BlockId id) {
  const BlockView b = memory.block(id);
  return {id,        memory.tier_of(id), b.word(),   b.uid(),  b.parent_uid(),
          b.stamp(), b.depth(),          b.domain(), b.group()};
}

/// Calls visit(BlockReport) for every block but the null block, in the order of their ids.
template <class Visit>
void for_each_block(const PoolMemory& memory, Visit&& visit) {
  for (std::uint32_t id = 1; id < memory.geometry().total_blocks(); ++id)
    visit(report_block(memory, BlockId{id}));
}

}  // namespace kvhive
