#pragma once
// An engine's ring without actors: its four states pass their messages on by plain calls.

#include <memory>
#include <optional>
#include <vector>

#include "actors/block_manager_state.hpp"
#include "actors/scheduler/scheduler_state.hpp"
#include "actors/swapper_state.hpp"
#include "tests/actors/oracle_runner.hpp"
#include "tests/actors/recording_sink.hpp"
#include "tests/support/private_pool.hpp"

namespace kvhive::testing {

/// A pool with 4 tokens and 64 bytes per block, as the oracle needs. `device_blocks` counts the
/// null block, too.
inline PoolMemory oracle_pool(std::uint32_t device_blocks, std::uint32_t host_blocks,
                              const CacheGroups& groups = {}) {
  PoolGeometry geometry = small_geometry(device_blocks, host_blocks, 4, 2);
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
  PlainRing(const PoolMemory& memory, ProcessSlot slot, const RingConfig& config)
      : PlainRing(memory, slot, config, std::make_unique<SwapperState>(memory),
                  std::make_unique<OracleRunner>(memory, slot), {}) {}
  PlainRing(const PoolMemory& memory, ProcessSlot slot, const RingConfig& config,
            std::unique_ptr<Swapper> swapper, std::unique_ptr<StepRunner> runner,
            EraseOnDevice erase)
      : memory_(memory),
        slot_(slot),
        pool_(memory, slot, Scrub::on_domain_change, std::move(erase)),
        scheduler_(config.scheduler),
        block_manager_(pool_, config.block_manager),
        swapper_(std::move(swapper)),
        runner_(std::move(runner)) {
    occupy(memory, slot, slot.value + 1);
  }

  /// Does what the next message would do: plans a step, or carries out the planned one.
  /// \return  whether there was anything to do; or the device's error, after which the caller must
  /// publish nothing
  Expected<bool> advance() {
    if (!plan_) {
      const auto request = scheduler_.next_step();
      has_settled_ = !request.has_value();
      if (!request) return false;
      plan_ = block_manager_.plan(*request);
      return true;
    }
    check_swaps(memory_, slot_, *plan_);
    if (auto moved = swapper_->move(*plan_); !moved) return forward_error(moved);
    auto results = runner_->run(*plan_);
    if (!results) return forward_error(results);
    const StepDone done{
        plan_->step, plan_->outcome, std::move(results->sampled), {}, std::move(results->scored)};
    plan_.reset();
    block_manager_.finish_step(done);
    scheduler_.complete(done);
    return true;
  }

  BlockPool& pool() { return pool_; }
  CopyPolicy& copy_policy() { return block_manager_.copy_policy(); }
  SchedulerState& scheduler() { return scheduler_; }
  /// No request runs or waits, and the block manager has been told all ends.
  bool is_quiet() const { return has_settled_ && scheduler_.unfinished() == 0; }

 private:
  const PoolMemory& memory_;
  ProcessSlot slot_;
  BlockPool pool_;
  SchedulerState scheduler_;
  BlockManagerState block_manager_;
  std::unique_ptr<Swapper> swapper_;
  std::unique_ptr<StepRunner> runner_;
  std::optional<StepPlan> plan_;
  bool has_settled_ = true;
};

}  // namespace kvhive::testing
