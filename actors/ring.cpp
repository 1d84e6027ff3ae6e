#include "actors/ring.hpp"

#include <chrono>
#include <cstdlib>

#include "actors/end_engine.hpp"
#include "actors/newest_tokens.hpp"
#include "actors/block_manager/step_pipeline.hpp"
#include "base/log.hpp"
#include "base/stop_watch.hpp"

namespace kvhive {
namespace {

template <class Actor>
void end_process_on_exception(Actor& actor, const char* name) {
  actor.set_exception_handler(
      [name](caf::scheduled_actor*, std::exception_ptr& pointer) -> caf::error {
        try {
          std::rethrow_exception(pointer);
        } catch (const std::exception& exception) {
          spdlog::critical("{}: {}", name, exception.what());
        } catch (...) {
          spdlog::critical("{}: unknown exception", name);
        }
        std::abort();
      });
}

/// Returns the value of `result`, or ends the engine if it is an error.
template <class Value>
Value value_or_end(Expected<Value> result, const char* name) {
  if (result) [[likely]]
    return std::move(*result);
  end_engine(name, result.error());
}

class ExecutorActor : public PlanHandle::base {
 public:
  ExecutorActor(caf::actor_config& config, std::unique_ptr<StepRunner> runner)
      : PlanHandle::base(config), runner_(std::move(runner)) {
    end_process_on_exception(*this, name());
  }
  const char* name() const override { return "executor"; }

 protected:
  behavior_type make_behavior() override {
    return {[this](StepPlan& plan) -> caf::result<StepDone> {
      StepDone answer{plan.step, {}, {}, plan.times};
      const StopWatch watch;
      newest_.fill_in(plan);
      StepResults results = value_or_end(runner_->run(plan), name());
      newest_ = NewestTokens(results.sampled);
      answer.sampled = std::move(results.sampled);
      answer.scored = std::move(results.scored);
      answer.times.computing = watch.seconds();
      answer.outcome = std::move(plan.outcome);
      answer.spent = std::move(plan.work);
      return answer;
    }};
  }

 private:
  std::unique_ptr<StepRunner> runner_;
  NewestTokens newest_;
};

class SwapperActor : public PlanHandle::base {
 public:
  SwapperActor(caf::actor_config& config, std::unique_ptr<Swapper> swapper, PlanHandle next)
      : PlanHandle::base(config), swapper_(std::move(swapper)), next_(std::move(next)) {
    end_process_on_exception(*this, name());
  }
  const char* name() const override { return "swapper"; }
  void on_exit() override {
    send_exit(next_, caf::exit_reason::user_shutdown);
    next_ = nullptr;
  }

 protected:
  behavior_type make_behavior() override {
    return {[this](StepPlan& plan) -> caf::result<StepDone> {
      plan.times.copying = value_or_end(swapper_->move(plan), name());
      return delegate(next_, std::move(plan));
    }};
  }

 private:
  std::unique_ptr<Swapper> swapper_;
  PlanHandle next_;
};

class BlockManagerActor : public BlockManagerHandle::base {
 public:
  BlockManagerActor(caf::actor_config& config, BlockManagerState state, PlanHandle swapper,
                    PlanHandle executor)
      : BlockManagerHandle::base(config),
        pipeline_(std::move(state)),
        swapper_(std::move(swapper)),
        executor_(std::move(executor)) {
    end_process_on_exception(*this, name());
  }
  const char* name() const override { return "block_manager"; }
  void on_exit() override {
    send_exit(swapper_, caf::exit_reason::user_shutdown);
    swapper_ = executor_ = nullptr;
  }

 protected:
  behavior_type make_behavior() override {
    return {[this](StepRequest& step) -> caf::result<StepDone> {
              pipeline_.ask(step);
              hand_on();
              if (auto answer = pipeline_.answer()) return std::move(*answer);
              asked_ = make_response_promise<StepDone>();
              return asked_;
            },
            [this](const Questions& questions) { return pipeline_.state().answer(questions); }};
  }

 private:
  /// What is no work for the swapper would only wake its thread to be passed on. It overtakes
  /// nothing: a plan that moves blocks is with swapper and executor alone.
  void hand_on() {
    while (auto plan = pipeline_.next_plan()) {
      const PlanHandle& next = plan->has_work_for_swapper() ? swapper_ : executor_;
      request(next, caf::infinite, std::move(*plan))
          .then([this](StepDone& answer) { finish(answer); },
                [this](caf::error& error) { asked_.deliver(std::move(error)); });
    }
  }

  /// The answer comes back through the block manager, so that the step's blocks are published
  /// before a client reads one of the step's tokens.
  void finish(StepDone& answer) {
    pipeline_.done(std::move(answer));
    hand_on();
    if (auto asked = pipeline_.answer()) asked_.deliver(std::move(*asked));
  }

  StepPipeline pipeline_;
  PlanHandle swapper_, executor_;
  caf::typed_response_promise<StepDone> asked_;  ///< what the scheduler waits for, if it waits
};

class SchedulerActor : public SchedulerHandle::base {
 public:
  SchedulerActor(caf::actor_config& config, SchedulerState state, BlockManagerHandle next)
      : SchedulerHandle::base(config), state_(std::move(state)), next_(std::move(next)) {
    end_process_on_exception(*this, name());
  }
  const char* name() const override { return "scheduler"; }
  void on_exit() override {
    send_exit(next_, caf::exit_reason::user_shutdown);
    next_ = nullptr;
  }

 protected:
  behavior_type make_behavior() override {
    return {[this](SubmitBatch& batch) {
              for (Submission& submission : batch.submissions) state_.submit(std::move(submission));
              state_.flush();
              replay_later();
              ask();
              step();
            },
            [this](const AbortBatch& batch) {
              state_.abort(batch);
              step();
            },
            [this](TellWhenEmpty& order) {
              when_empty_ = std::move(order.tell);
              step();
            },
            [this](const NewLimits& limits) { state_.set_limits(limits); },
            [this](Retry) {
              is_resting_ = false;
              step();
            },
            [this](ReplayMore) {
              is_replaying_ = false;
              state_.replay_some();
              replay_later();
              step();
            },
            [this](LookAfterTails) {
              waits_for_tails_ = false;
              state_.look_after_tails();
              step();
            }};
  }

 private:
  void replay_later() {
    if (is_replaying_ || !state_.has_journals()) return;
    is_replaying_ = true;
    send(this, ReplayMore{});
  }

  /// One message with questions is out at a time: steps have their turn in between.
  void ask() {
    auto questions = state_.next_questions();
    if (!questions) return;
    request(next_, caf::infinite, std::move(*questions)).then([this](Answers& answers) {
      state_.answer(answers);
      ask();
      step();
    });
  }

  /// Starts the next step, unless one is under way or the scheduler is waiting for a Retry.
  void step() {
    if (is_stepping_ || is_resting_) return;
    auto request_step = state_.next_step();
    if (!request_step) {
      look_after_tails_later();
      if (when_empty_ && state_.unfinished() == 0) std::exchange(when_empty_, nullptr)();
      return;
    }
    is_stepping_ = true;
    request(next_, caf::infinite, std::move(*request_step))
        .then([this](const StepDone& answer) { finish_step(answer); },
              [this](const caf::error& error) {
                spdlog::critical("a step was not answered: {}", system().render(error));
                std::abort();
              });
  }

  /// An engine with nothing to do must not keep blocks from others.
  void look_after_tails_later() {
    if (!state_.keeps_tails() || std::exchange(waits_for_tails_, true)) return;
    delayed_send(this, std::chrono::nanoseconds(Tails::kLife), LookAfterTails{});
  }

  void finish_step(const StepDone& answer) {
    is_stepping_ = false;
    state_.complete(answer);
    // Other engines hold the pool's blocks, and send no message when they release them. So the
    // scheduler tries again after 1 ms.
    if (state_.is_starved()) {
      is_resting_ = true;
      delayed_send(this, std::chrono::milliseconds(1), Retry{});
      return;
    }
    step();
  }

  SchedulerState state_;
  BlockManagerHandle next_;
  std::function<void()> when_empty_;
  bool is_stepping_ = false;
  bool is_resting_ = false;
  bool is_replaying_ = false;     ///< a ReplayMore is on its way
  bool waits_for_tails_ = false;  ///< so is a LookAfterTails
};

template <class Class, class... Arguments>
auto spawn_placed(caf::actor_system& system, Placement placement, Arguments&&... arguments) {
  return placement == Placement::detached
             ? system.spawn<Class, caf::detached>(std::forward<Arguments>(arguments)...)
             : system.spawn<Class>(std::forward<Arguments>(arguments)...);
}

}  // namespace

PlanHandle spawn_executor(caf::actor_system& system, std::unique_ptr<StepRunner> runner,
                          Placement placement) {
  return spawn_placed<ExecutorActor>(system, placement, std::move(runner));
}

PlanHandle spawn_swapper(caf::actor_system& system, std::unique_ptr<Swapper> swapper,
                         PlanHandle next, Placement placement) {
  return spawn_placed<SwapperActor>(system, placement, std::move(swapper), std::move(next));
}

BlockManagerHandle spawn_block_manager(caf::actor_system& system, BlockManagerState state,
                                       PlanHandle swapper, PlanHandle executor) {
  return system.spawn<BlockManagerActor>(std::move(state), std::move(swapper), std::move(executor));
}

SchedulerHandle spawn_scheduler(caf::actor_system& system, SchedulerState state,
                                BlockManagerHandle next) {
  return system.spawn<SchedulerActor>(std::move(state), std::move(next));
}

SchedulerHandle spawn_ring(caf::actor_system& system, RingParts parts) {
  parts.scheduler.counters = &parts.pool->counters();
  PlanHandle executor = spawn_executor(system, std::move(parts.runner), Placement::detached);
  PlanHandle swapper =
      spawn_swapper(system, std::move(parts.swapper), executor, Placement::detached);
  BlockManagerHandle manager =
      spawn_block_manager(system, BlockManagerState(*parts.pool, parts.block_manager),
                          std::move(swapper), std::move(executor));
  return spawn_scheduler(system, SchedulerState(std::move(parts.scheduler)), std::move(manager));
}

}  // namespace kvhive
