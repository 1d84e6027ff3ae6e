#include "actors/block_manager/step_pipeline.hpp"

#include <utility>

#include "base/check.hpp"

namespace kvhive {

void StepPipeline::ask(const StepRequest& request) {
  KV_CHECK(!is_asked_);
  is_asked_ = true;
  if (std::exchange(is_ahead_, false)) {
    state_.join(request);
    if (early_) apply(*std::exchange(early_, std::nullopt));
  } else {
    StepPlan plan = state_.plan(request);
    if (plan.is_empty()) {
      done_ = StepDone{plan.step, std::move(plan.outcome), {}, {}};
      return;
    }
    plans_.push_back(std::move(plan));
  }
  if (auto ahead = state_.plan_ahead()) {
    is_ahead_ = true;
    plans_.push_back(std::move(*ahead));
  }
}

std::optional<StepPlan> StepPipeline::next_plan() {
  if (plans_.empty()) return std::nullopt;
  const bool moves_blocks = plans_.front().moves_blocks();
  if (under_way_ != 0 && (moves_blocks_ || moves_blocks)) return std::nullopt;
  ++under_way_;
  moves_blocks_ = moves_blocks;
  std::optional<StepPlan> next = std::move(plans_.front());
  plans_.pop_front();
  return next;
}

void StepPipeline::done(StepDone done) {
  --under_way_;
  if (is_asked_ && !done_)
    apply(std::move(done));
  else
    early_ = std::move(done);
}

void StepPipeline::apply(StepDone done) {
  state_.finish_step(done);
  state_.reuse(std::exchange(done.spent, {}));
  done_ = std::move(done);
}

std::optional<StepDone> StepPipeline::answer() {
  if (done_) {
    is_asked_ = false;
    done_->outcome.keeps_tails = state_.keeps_tails();
  }
  return std::exchange(done_, std::nullopt);
}

}  // namespace kvhive
