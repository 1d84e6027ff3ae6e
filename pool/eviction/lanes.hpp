#pragma once
// How many blocks of the device tier each domain has, for the domains that have limits
// (PoolGeometry::limits): a minimum, below which others' allocations do not evict the domain's
// blocks, and a maximum. Or how many each model has, if models have minimums
// (PoolGeometry::model_minimums).
//
// Each such domain, or each model, has a lane. Lane 0 is of all other domains, and has no limits.
// Which lane a published block is in follows from domain and group in its descriptor, so nothing
// can put a block into a wrong lane. A block that is being filled counts for the domain for which
// it was taken. A free block is in no lane.
//
// Each process counts its own changes in its slot (LaneCounters); a lane has the sum over all slots
// plus a correction. A process that is killed between changing a block's word and counting leaves
// the sums wrong by that block, until the sweep of its slot counts all blocks and sets the
// corrections anew (recount_lanes()). The numbers are hints: they decide which blocks are evicted,
// never whether a block is whose. Since several processes allocate at once, each on the numbers
// that it has read, a limit is exceeded by at most what is under way in other processes.
//
// A pool without limits has lane 0 alone, and counts nothing here.

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "pool/block_view.hpp"
#include "pool/pool_memory.hpp"

namespace kvhive {

/// Which lane a block is in. The host tier has one lane: limits are of the device tier.
class LaneMap {
 public:
  LaneMap(const PoolGeometry& geometry, Tier tier);

  std::size_t count() const { return count_; }
  bool is_by_model() const { return is_by_model_; }
  BlockLimits limits(std::size_t lane) const { return limits_[lane]; }
  /// The lane in which a block that is allocated for this domain and model counts.
  std::size_t of(DomainId domain, ModelId model) const {
    if (is_by_model_) return model.value + std::size_t{1};
    return domain.value + std::size_t{1} < count_ ? domain.value + std::size_t{1} : 0;
  }
  /// Of the content that is in the block, or was before it was taken.
  std::size_t of(BlockView block) const {
    if (count_ == 1) return 0;
    return of(block.domain(), is_by_model_ ? geometry_->model_of(block.group()) : ModelId{});
  }

 private:
  const PoolGeometry* geometry_;
  bool is_by_model_;
  std::size_t count_;
  std::array<BlockLimits, kMostLanes> limits_{};
};

/// The blocks of one lane. A hint, like all counters.
struct LaneTotals {
  std::uint32_t cached = 0;   ///< published, idle ones included
  std::uint32_t idle = 0;     ///< published, and held by no process
  std::uint32_t filling = 0;  ///< being filled

  std::uint32_t all() const { return cached + filling; }
  std::uint32_t held() const { return all() - idle; }
  friend bool operator==(const LaneTotals&, const LaneTotals&) = default;
};

/// By the counters.
LaneTotals lane_totals(const ControlBlock& control, std::size_t lane);

/// Counts the blocks by their words and descriptors, and sets the corrections. Gives up after four
/// attempts if other processes keep working meanwhile, like correct_used().
void recount_lanes(const PoolMemory& memory);

/// The lanes' blocks by their words and descriptors, by lane. A block that is being filled counts
/// by its descriptor, which may still say what was in it before.
std::vector<LaneTotals> count_lanes(const PoolMemory& memory);

/// The lanes as one process counts and uses them.
class Lanes {
 public:
  /// \param model  this process's, for which it takes blocks
  Lanes(const PoolMemory& memory, ProcessSlot slot, ModelId model = {});

  std::size_t count() const { return map_.count(); }
  /// The lane for which this process takes blocks for the domain.
  std::size_t of(DomainId domain) const { return map_.of(domain, model_); }
  std::size_t of(BlockView block) const { return map_.of(block); }
  LaneTotals totals(std::size_t lane) const { return lane_totals(*control_, lane); }
  BlockLimits limits(std::size_t lane) const { return map_.limits(lane); }
  BlockLimits limits_of(DomainId domain) const {
    return count() == 1 ? BlockLimits{} : limits(of(domain));
  }

  /// How many of `total` free and idle blocks of the device tier the domain can take now: without
  /// others' idle blocks below their minimum, and within its own maximum.
  std::size_t available(DomainId domain, std::size_t total) const;
  /// How many of `total` blocks the domain can have at all: without the others' minimums, and
  /// within its own maximum.
  std::size_t capacity(DomainId domain, std::size_t total) const;
  /// How many of `count` blocks the domain must take from its own idle ones, because of its
  /// maximum.
  std::size_t beyond_maximum(DomainId domain, std::size_t count) const;
  /// Whether the domain's maximum alone keeps it from getting `count` blocks.
  bool is_at_maximum(DomainId domain, std::size_t count) const;
  /// Whether the domain has a minimum and holds, with `more` blocks, no more than that. A model's
  /// minimum says nothing about who of its requests goes first.
  bool is_within_minimum(DomainId domain, std::size_t more) const;
  /// By lane: how many of its idle blocks an allocation of `count` blocks for the domain may evict.
  std::vector<std::size_t> evictable(DomainId domain, std::size_t count) const;

  // Called after the word has changed.

  /// This process has begun to fill the block, for the domain.
  void taken(BlockId block, DomainId domain) {
    if (is_counted(block)) count_taken(block, domain);
  }
  /// This process has taken an idle block of the lane.
  void evicted(BlockId block, std::size_t lane) {
    if (is_counted(block)) count_evicted(lane);
  }
  void published(BlockId block) {
    if (is_counted(block)) count_published(block);
  }
  /// The process has freed a block that it was filling.
  void freed(BlockId block) {
    if (is_counted(block)) count_freed(block);
  }
  /// The published block, of the lane, was idle until this process pinned it; `change` = -1. Or it
  /// has become idle; `change` = 1.
  void idle_changed(BlockId block, std::size_t lane, int change) {
    if (is_counted(block)) bump(own_[lane].idle, change);
  }

  // For the reaper, in the slot of a dead process.

  /// The reaper has taken a published block in order to free it. Only what the dead process itself
  /// was filling is in `filling`.
  void dropped(BlockId block, std::size_t lane, bool was_idle) {
    if (!is_counted(block)) return;
    bump(own_[lane].cached, -1);
    if (was_idle) bump(own_[lane].idle, -1);
  }
  /// The dead process fills no block any more.
  void forget_filling();

 private:
  bool is_counted(BlockId block) const { return block.value < counted_blocks_; }
  void count_taken(BlockId block, DomainId domain);
  void count_evicted(std::size_t lane);
  void count_published(BlockId block);
  void count_freed(BlockId block);

  const ControlBlock* control_;
  LaneMap map_;
  ModelId model_;
  std::uint32_t counted_blocks_;  ///< blocks with lower ids are counted: all of the device tier
  LaneCounters* own_;             ///< this process's counters, by lane
  /// By block: if this process is filling it, the lane for which it was taken.
  std::vector<std::uint8_t> filled_for_;
};

}  // namespace kvhive
