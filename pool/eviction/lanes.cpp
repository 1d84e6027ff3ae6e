#include "pool/eviction/lanes.hpp"

#include <algorithm>
#include <array>

#include "base/kill_point.hpp"

namespace kvhive {
namespace {

/// The sums over all slots, without the corrections. `filling` needs none.
LaneTotals counted(const ControlBlock& control, std::size_t lane) {
  LaneTotals sum;
  for (const ProcessEntry& process : control.processes) {
    const LaneCounters& counters = process.lanes[lane];
    sum.cached += counters.cached.load(relaxed);
    sum.idle += counters.idle.load(relaxed);
    sum.filling += counters.filling.load(relaxed);
  }
  return sum;
}

/// A number of blocks is never negative, nor near 2^32. It looks so while a process has counted the
/// end of something whose beginning this one has not read.
std::uint32_t plausible(std::uint32_t blocks) {
  return static_cast<std::int32_t>(blocks) < 0 ? 0 : blocks;
}

std::size_t less(std::size_t from, std::size_t take) { return from - std::min(from, take); }

}  // namespace

LaneMap::LaneMap(const PoolGeometry& geometry, Tier tier)
    : geometry_(&geometry),
      is_by_model_(tier == Tier::device && geometry.has_model_minimums()),
      count_(is_by_model_           ? geometry.model_count + std::size_t{1}
             : tier == Tier::device ? geometry.limited_domains() + std::size_t{1}
                                    : 1) {
  for (std::size_t lane = 1; lane < count_; ++lane)
    limits_[lane] = is_by_model_ ? BlockLimits{geometry.model_minimums[lane - 1], 0}
                                 : geometry.limits[lane - 1];
}

LaneTotals lane_totals(const ControlBlock& control, std::size_t lane) {
  const LaneControl& shared = control.tiers[std::size_t(Tier::device)].lanes[lane];
  LaneTotals totals = counted(control, lane);
  totals.cached = plausible(totals.cached + shared.cached_correction.load(relaxed));
  totals.idle = plausible(totals.idle + shared.idle_correction.load(relaxed));
  totals.filling = plausible(totals.filling);
  totals.idle = std::min(totals.idle, totals.cached);
  return totals;
}

std::vector<LaneTotals> count_lanes(const PoolMemory& memory) {
  const LaneMap lanes(memory.geometry(), Tier::device);
  std::vector<LaneTotals> totals(lanes.count());
  for (std::uint32_t id = 1; id < memory.geometry().device_blocks; ++id) {
    const BlockView block = memory.block(BlockId{id});
    const BlockWord word = block.word();
    LaneTotals& lane = totals[lanes.of(block)];
    lane.cached += word.is_ready();
    lane.idle += word.is_idle();
    lane.filling += word.state() == BlockState::filling;
  }
  return totals;
}

void recount_lanes(const PoolMemory& memory) {
  ControlBlock& control = memory.control();
  const std::size_t lanes = LaneMap(memory.geometry(), Tier::device).count();
  if (lanes == 1) return;
  std::array<LaneTotals, kMostLanes> before;
  const auto is_unchanged = [&] {
    for (std::size_t lane = 0; lane < lanes; ++lane)
      if (counted(control, lane) != before[lane]) return false;
    return true;
  };
  for (int attempt = 0; attempt < 4; ++attempt) {
    for (std::size_t lane = 0; lane < lanes; ++lane) before[lane] = counted(control, lane);
    const std::vector<LaneTotals> truth = count_lanes(memory);
    if (!is_unchanged()) continue;
    for (std::size_t lane = 0; lane < lanes; ++lane) {
      LaneControl& shared = control.tiers[std::size_t(Tier::device)].lanes[lane];
      KV_KILL_POINT("lanes.before_correction");
      shared.cached_correction.store(truth[lane].cached - before[lane].cached, relaxed);
      KV_KILL_POINT("lanes.half_corrected");
      shared.idle_correction.store(truth[lane].idle - before[lane].idle, relaxed);
      KV_KILL_POINT("lanes.corrected");
    }
    return;
  }
}

Lanes::Lanes(const PoolMemory& memory, ProcessSlot slot, ModelId model)
    : control_(&memory.control()),
      map_(memory.geometry(), Tier::device),
      model_(model),
      counted_blocks_(count() == 1 ? 0 : memory.geometry().device_blocks),
      own_(memory.control().processes[slot.value].lanes.data()),
      filled_for_(counted_blocks_) {}

// -- counting -------------------------------------------------------------------------------------

void Lanes::count_taken(BlockId block, DomainId domain) {
  const std::size_t lane = of(domain);
  filled_for_[block.value] = static_cast<std::uint8_t>(lane);
  KV_KILL_POINT("lanes.before_taken");
  bump(own_[lane].filling, 1);
  KV_KILL_POINT("lanes.taken");
}

void Lanes::count_evicted(std::size_t number) {
  LaneCounters& lane = own_[number];
  KV_KILL_POINT("lanes.before_evicted");
  bump(lane.cached, -1);
  KV_KILL_POINT("lanes.half_evicted");
  bump(lane.idle, -1);
  KV_KILL_POINT("lanes.evicted");
}

void Lanes::count_published(BlockId block) {
  LaneCounters& lane = own_[filled_for_[block.value]];
  KV_KILL_POINT("lanes.before_published");
  bump(lane.cached, 1);
  KV_KILL_POINT("lanes.half_published");
  bump(lane.filling, -1);
  KV_KILL_POINT("lanes.published");
}

void Lanes::count_freed(BlockId block) {
  KV_KILL_POINT("lanes.before_freed");
  bump(own_[filled_for_[block.value]].filling, -1);
  KV_KILL_POINT("lanes.freed");
}

void Lanes::forget_filling() {
  for (std::size_t lane = 0; lane < count(); ++lane) {
    KV_KILL_POINT("lanes.before_forgotten");
    own_[lane].filling.store(0, relaxed);
    KV_KILL_POINT("lanes.forgotten");
  }
}

// -- limits ---------------------------------------------------------------------------------------

std::size_t Lanes::available(DomainId domain, std::size_t total) const {
  if (count() == 1) return total;
  const std::size_t own = of(domain);
  for (std::size_t lane = 1; lane < count(); ++lane) {
    if (lane == own || limits(lane).min == 0) continue;
    const LaneTotals has = totals(lane);
    const std::size_t protects = less(limits(lane).min, has.held());
    total = less(total, std::min<std::size_t>(has.idle, protects));
  }
  if (const std::size_t most = limits(own).max; most != 0)
    total = std::min(total, less(most, totals(own).held()));
  return total;
}

std::size_t Lanes::capacity(DomainId domain, std::size_t total) const {
  if (count() == 1) return total;
  const std::size_t own = of(domain);
  for (std::size_t lane = 1; lane < count(); ++lane)
    if (lane != own) total = less(total, limits(lane).min);
  const std::size_t most = limits(own).max;
  return most != 0 ? std::min(total, most) : total;
}

std::size_t Lanes::beyond_maximum(DomainId domain, std::size_t count) const {
  const std::size_t own = of(domain), most = limits(own).max;
  return most == 0 ? 0 : std::min(count, less(totals(own).all() + count, most));
}

bool Lanes::is_at_maximum(DomainId domain, std::size_t count) const {
  const std::size_t own = of(domain), most = limits(own).max;
  return most != 0 && totals(own).held() + count > most;
}

bool Lanes::is_within_minimum(DomainId domain, std::size_t more) const {
  if (map_.is_by_model()) return false;
  const std::size_t own = of(domain), least = limits(own).min;
  return least != 0 && totals(own).held() + more <= least;
}

std::vector<std::size_t> Lanes::evictable(DomainId domain, std::size_t count) const {
  std::vector<std::size_t> most(map_.count());
  for (std::size_t lane = 0; lane < most.size(); ++lane) {
    const LaneTotals has = totals(lane);
    // The domain's own lane as it will be, when it has the new blocks.
    const std::size_t all = has.all() + (lane == of(domain) ? count : 0);
    most[lane] = limits(lane).min == 0 ? count : less(all, limits(lane).min);
  }
  return most;
}

}  // namespace kvhive
