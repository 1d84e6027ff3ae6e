#pragma once
// The interfaces of the actors, and the settings of the actor system. No other header depends on
// CAF's version (0.17.6).

#include <caf/all.hpp>

#include "actors/messages.hpp"

// Messages stay inside one process, so nothing is ever serialised.
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(kvhive::SubmitBatch)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(kvhive::AbortBatch)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(kvhive::TellWhenEmpty)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(kvhive::NewLimits)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(kvhive::Questions)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(kvhive::Answers)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(kvhive::StepRequest)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(kvhive::StepPlan)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(kvhive::StepDone)

namespace kvhive {

/// scheduler -> scheduler: try a step again, since other engines may have released blocks.
struct Retry {};
/// scheduler -> scheduler: go on replaying journals. Other messages have their turn in between.
struct ReplayMore {};
/// scheduler -> scheduler: blocks have been kept for forks long enough.
struct LookAfterTails {};

}  // namespace kvhive
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(kvhive::Retry)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(kvhive::ReplayMore)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(kvhive::LookAfterTails)

namespace kvhive {

using SchedulerHandle = caf::typed_actor<caf::reacts_to<SubmitBatch>, caf::reacts_to<AbortBatch>,
                                         caf::reacts_to<TellWhenEmpty>, caf::reacts_to<NewLimits>,
                                         caf::reacts_to<Retry>, caf::reacts_to<ReplayMore>,
                                         caf::reacts_to<LookAfterTails>>;
using BlockManagerHandle = caf::typed_actor<caf::replies_to<StepRequest>::with<StepDone>,
                                            caf::replies_to<Questions>::with<Answers>>;
/// Interface of swapper and executor. The swapper, which has only plans that move blocks, passes
/// them on to the executor, whose answer goes to the block manager.
using PlanHandle = caf::typed_actor<caf::replies_to<StepPlan>::with<StepDone>>;

/// Settings for an actor system that does not poll while it is idle: one worker thread, for
/// scheduler and block manager. Each waits for the other most of the time, and a second thread
/// would be woken for each of their messages.
struct ActorConfig : caf::actor_system_config {
  ActorConfig() {
    set("scheduler.policy", caf::atom("sharing"));
    set("scheduler.max-threads", std::size_t{1});
  }
};

}  // namespace kvhive
