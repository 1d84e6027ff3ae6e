#pragma once
// The state of the pool in numbers. Only reads, and works whether other processes are running,
// stopped or dead.

#include <array>
#include <cstdint>
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
};

struct ProcessReport {
  std::uint32_t slot = 0;
  std::uint32_t pid = 0;
  std::uint32_t index = 0;
  std::int64_t started = 0;
  std::array<std::uint64_t, kTiers> held_blocks{};
  CounterValues counted;  ///< by this process alone, since it signed in
};

struct BlockReport {
  BlockId id;
  Tier tier = Tier::device;
  BlockWord word;
  std::uint64_t uid = 0, parent_uid = 0, stamp = 0;
  std::uint32_t depth = 0;
  DomainId domain{};
};

struct PoolReport {
  PoolGeometry geometry;
  std::string epoch;  ///< hex
  std::array<TierReport, kTiers> tiers;
  std::vector<ProcessReport> processes;  ///< attached now
  CounterValues totals;                  ///< counted by all processes, dead ones included
};

PoolReport report_pool(const PoolMemory& memory);
std::vector<BlockReport> report_blocks(const PoolMemory& memory);

}  // namespace kvhive
