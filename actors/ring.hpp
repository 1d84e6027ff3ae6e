#pragma once
// The actors of an engine, connected into a ring: scheduler -> block manager -> (swapper, if blocks
// are moved ->) executor -> block manager -> scheduler.
//
// There is no error recovery inside the ring: a lost device, or an exception that escapes a
// handler, ends the process. The pool survives that, the keeper starts another engine, and the
// requests are continued from their journals by an engine that takes them over.

#include <memory>

#include "actors/block_manager/block_manager_state.hpp"
#include "actors/protocol.hpp"
#include "actors/scheduler/scheduler_state.hpp"
#include "actors/step_runner.hpp"
#include "actors/swapper.hpp"

namespace kvhive {

struct RingParts {
  SchedulerConfig scheduler;
  BlockManagerConfig block_manager;
  BlockPool* pool = nullptr;  ///< must outlive the actor system
  std::unique_ptr<Swapper> swapper;
  std::unique_ptr<StepRunner> runner;
};

/// Spawns the actors of the ring and returns the scheduler. Only the scheduler refers to the other
/// actors, so they end with it.
SchedulerHandle spawn_ring(caf::actor_system& system, RingParts parts);

/// Spawn one actor each, for tests that connect them in other ways. `detached` = the actor gets a
/// thread of its own, because its work blocks; `scheduled` = it runs on the system's worker
/// threads.
enum class Placement : std::uint8_t { detached, scheduled };
PlanHandle spawn_executor(caf::actor_system& system, std::unique_ptr<StepRunner> runner,
                          Placement placement);
PlanHandle spawn_swapper(caf::actor_system& system, std::unique_ptr<Swapper> swapper,
                         PlanHandle next, Placement placement);
BlockManagerHandle spawn_block_manager(caf::actor_system& system, BlockManagerState state,
                                       PlanHandle swapper, PlanHandle executor);
SchedulerHandle spawn_scheduler(caf::actor_system& system, SchedulerState state,
                                BlockManagerHandle next);

}  // namespace kvhive
