#pragma once
// The actors of an engine, wired into a ring: scheduler -> block manager -> swapper -> executor ->
// scheduler.
//
// Crash-only: a lost device, or an exception that escapes a handler, ends the process. The pool
// survives that, the keeper starts another engine, and the requests go on there from their
// journals.

#include <memory>

#include "actors/block_manager_state.hpp"
#include "actors/protocol.hpp"
#include "actors/scheduler_state.hpp"
#include "actors/step_runner.hpp"
#include "actors/swapper.hpp"

namespace kvhive {

struct RingParts {
  SchedulerConfig scheduler;
  BlockManagerConfig block_manager;
  BlockPool* pool = nullptr;  ///< outlives the system
  std::unique_ptr<Swapper> swapper;
  std::unique_ptr<StepRunner> runner;
};

/// Spawns the ring and returns its entry; the rest is reachable from it alone, and ends with it.
SchedulerHandle spawn_ring(caf::actor_system& system, RingParts parts);

/// The single actors, for tests that connect them in other ways. Blocking ones get a thread of
/// their own unless told not to.
enum class Placement : std::uint8_t { detached, scheduled };
PlanHandle spawn_executor(caf::actor_system& system, std::unique_ptr<StepRunner> runner,
                          Placement placement);
PlanHandle spawn_swapper(caf::actor_system& system, std::unique_ptr<Swapper> swapper,
                         PlanHandle next, Placement placement);
BlockManagerHandle spawn_block_manager(caf::actor_system& system, BlockManagerState state,
                                       PlanHandle next);
SchedulerHandle spawn_scheduler(caf::actor_system& system, SchedulerState state,
                                BlockManagerHandle next);

}  // namespace kvhive
