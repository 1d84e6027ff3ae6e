#pragma once
// Between the scheduler, which asks for one step at a time, and the executor, which may have the
// next one before it is done with the first: which plans go there and when, and whose results
// answer which request. Plain C++; the block manager's actor is a shell around it.

#include <deque>
#include <optional>

#include "actors/block_manager/block_manager_state.hpp"

namespace kvhive {

class StepPipeline {
 public:
  explicit StepPipeline(BlockManagerState state) : state_(std::move(state)) {}

  /// The scheduler's next request. The one before must have been answered.
  void ask(const StepRequest& request);
  /// A plan to hand on now, if there is one. Two that move no blocks may be with the executor
  /// together, which begins the second as soon as it is done with the first.
  std::optional<StepPlan> next_plan();
  /// The executor is done with the plan that it has had the longest.
  void done(StepDone done);
  /// What the scheduler has asked for, once it is there.
  std::optional<StepDone> answer();

  BlockManagerState& state() { return state_; }

 private:
  void apply(StepDone done);

  BlockManagerState state_;
  std::deque<StepPlan> plans_;    ///< not handed on yet
  std::optional<StepDone> done_;  ///< of the step that was asked for
  /// Of the step behind it. It changes nothing before it is asked for: then it is known which of
  /// its sequences had ended.
  std::optional<StepDone> early_;
  bool is_asked_ = false;
  bool is_ahead_ = false;      ///< the newest plan was not asked for yet
  int under_way_ = 0;          ///< plans that are with the executor
  bool moves_blocks_ = false;  ///< the newest of them does
};

}  // namespace kvhive
