#pragma once
// An engine's ring without actors: its states pass their messages on by plain calls, each time one
// of those that could be the next.

#include <deque>
#include <memory>
#include <vector>

#include "actors/newest_tokens.hpp"
#include "actors/scheduler/scheduler_state.hpp"
#include "actors/block_manager/step_pipeline.hpp"
#include "actors/swapper_state.hpp"
#include "tests/actors/oracle_runner.hpp"
#include "tests/actors/recording_sink.hpp"
#include "tests/support/private_pool.hpp"

namespace kvhive::testing {

/// A pool with 4 tokens and 64 bytes per block, as the oracle needs. `device_blocks` counts the
/// null block, too.
inline PoolMemory oracle_pool(std::uint32_t device_blocks, std::uint32_t host_blocks,
                              const CacheGroups& groups = {},
                              HashAlgorithm algorithm = HashAlgorithm::xxhash) {
  PoolGeometry geometry = small_geometry(device_blocks, host_blocks, 4, 2);
  geometry.hash_algorithm = algorithm;
  geometry.models[0].groups = groups;
  return private_pool(geometry);
}

struct RingConfig {
  SchedulerConfig scheduler{.max_num_seqs = 128,
                            .max_num_batched_tokens = 2048,
                            .max_model_len = 1024,
                            .vocab_size = kOracleVocab,
                            .eos_token_ids = {kOracleEos},
                            .tokenizer = nullptr};
  BlockManagerConfig block_manager{};
};

class PlainRing {
 public:
  PlainRing(const PoolMemory& memory, ProcessSlot slot, const RingConfig& config,
            ModelId model = {})
      : PlainRing(memory, slot, config, std::make_unique<SwapperState>(memory),
                  std::make_unique<OracleRunner>(memory, slot, model), {}, model) {}
  PlainRing(const PoolMemory& memory, ProcessSlot slot, const RingConfig& config,
            std::unique_ptr<Swapper> swapper, std::unique_ptr<StepRunner> runner,
            EraseOnDevice erase, ModelId model = {})
      : memory_(memory),
        slot_(slot),
        pool_(memory, slot, Scrub::on_domain_change, std::move(erase), model),
        scheduler_(config.scheduler),
        pipeline_(BlockManagerState(pool_, config.block_manager)),
        swapper_(std::move(swapper)),
        runner_(std::move(runner)) {
    occupy(memory, slot, slot.value + 1);
  }

  /// Does what the next message would do: plans a step, carries out a planned one, or tells the
  /// scheduler of one that is done. A plan that was made ahead is carried out before or after that.
  /// \return  whether there was anything to do; or the device's error, after which the caller must
  /// publish nothing
  Expected<bool> advance() {
    if (!is_asked_) {
      auto request = scheduler_.next_step();
      if (!request && scheduler_.keeps_tails()) {
        scheduler_.look_after_tails();
        request = scheduler_.next_step();
      }
      has_settled_ = !request.has_value();
      if (!request) return false;
      is_asked_ = true;
      pipeline_.ask(*request);
      return true;
    }
    while (auto plan = pipeline_.next_plan()) plans_.push_back(std::move(*plan));
    runs_first_ = !runs_first_;
    if (runs_first_ && !plans_.empty()) return run();
    if (const auto done = pipeline_.answer()) {
      is_asked_ = false;
      scheduler_.complete(*done);
      return true;
    }
    return run();
  }

  BlockPool& pool() { return pool_; }
  CopyPolicy& copy_policy() { return pipeline_.state().copy_policy(); }
  SchedulerState& scheduler() { return scheduler_; }
  /// Steps that the model has computed.
  std::uint64_t steps() const { return steps_; }
  /// No request runs or waits, and the block manager has been told all ends.
  bool is_quiet() const { return has_settled_ && scheduler_.unfinished() == 0; }

 private:
  Expected<bool> run() {
    StepPlan plan = std::move(plans_.front());
    plans_.pop_front();
    check_swaps(memory_, slot_, plan);
    if (auto moved = swapper_->move(plan); !moved) return forward_error(moved);
    newest_.fill_in(plan);
    auto results = runner_->run(plan);
    if (!results) return forward_error(results);
    ++steps_;
    newest_ = NewestTokens(results->sampled);
    pipeline_.done(
        {plan.step, plan.outcome, std::move(results->sampled), {}, std::move(results->scored)});
    return true;
  }

  const PoolMemory& memory_;
  ProcessSlot slot_;
  BlockPool pool_;
  SchedulerState scheduler_;
  StepPipeline pipeline_;
  std::unique_ptr<Swapper> swapper_;
  std::unique_ptr<StepRunner> runner_;
  NewestTokens newest_;
  std::deque<StepPlan> plans_;  ///< with the executor
  std::uint64_t steps_ = 0;
  bool is_asked_ = false;
  bool runs_first_ = false;
  bool has_settled_ = true;
};

}  // namespace kvhive::testing
