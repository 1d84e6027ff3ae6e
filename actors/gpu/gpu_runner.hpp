#pragma once
// Runs steps on a GPU: uses the plan's block tables over the device arena, makes its stream wait
// for the plan's swaps (layer by layer if possible), computes and samples on the device. Before
// run() returns, the host has waited for all of this, including the swaps.

#include "actors/gpu/device_swapper.hpp"
#include "actors/speculation/accepted.hpp"
#include "actors/step_runner.hpp"
#include "models/gpu/gpu_transformer.hpp"

namespace kvhive {

class GpuRunner final : public StepRunner {
 public:
  /// \param swapper the swapper that gets each plan before this runner; must live during run()
  /// \param copy for copies within the device; reads `pairs` during the call
  /// \param arena address of block 0 of the device tier, mapped by the model's device
  GpuRunner(GpuTransformer model, DeviceSwapper& swapper, CopyOnDevice copy, std::byte* arena,
            const KvLayout& layout)
      : model_(std::move(model)),
        swapper_(swapper),
        copy_(std::move(copy)),
        arena_(arena),
        layout_(layout),
        groups_(groups_of(model_.config(), layout).groups.count) {}

  [[nodiscard]] Expected<StepResults> run(const StepPlan& plan) override;

 private:
  bool swaps_in_by_layers(const StepPlan& plan) const;
  [[nodiscard]] Expected<void> queue_copies(const StepPlan& plan) const;
  [[nodiscard]] Expected<StepResults> compute(const StepPlan& plan);
  [[nodiscard]] Expected<void> choose_by_rules(std::span<const SampledRow> rows,
                                               std::vector<GeneratedToken>& sampled) const;

  GpuTransformer model_;
  DeviceSwapper& swapper_;
  CopyOnDevice copy_;
  std::byte* arena_;
  KvLayout layout_;
  std::uint32_t groups_;
  std::vector<float> logits_;  ///< of prompts that are scored, on the host
};

}  // namespace kvhive
