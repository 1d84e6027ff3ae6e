#pragma once
// The state of one plan() call, for the sources of BlockManagerState.

#include <set>
#include <unordered_set>
#include <vector>

#include "actors/block_manager/block_manager_state.hpp"

namespace kvhive {

struct BlockManagerState::Round {
  const StepRequest& request;
  StepPlan plan;
  std::uint32_t budget;
  std::uint32_t most_of_one;  ///< tokens that one sequence may compute
  std::uint32_t running = 0;
  std::size_t next_victim = 0;
  /// Device blocks that this step copies to the host. They can be allocated in the next step, not
  /// in this one.
  std::size_t leaving_blocks = 0;
  std::unordered_set<SeqId> preempted;
  /// For what there is no room. If it is of all, the pool has none, and not only a domain.
  Lack lack{};
  /// Domains that have as many blocks as they may, all held: nothing of theirs is admitted.
  std::set<DomainId> at_maximum{};
  std::vector<Evicted> evicted;  ///< contents that this step's allocations evicted from the device
  StepBlocks filled;             ///< blocks that this step's sequences fill
  StepUnderWay under_way{};      ///< what is to be remembered of the step
};

}  // namespace kvhive
