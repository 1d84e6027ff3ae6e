#pragma once
// Runs steps on a GPU: joins the plan's block tables with the device arena, waits for the plan's
// swaps on the device, layer by layer where they may come so, samples there. When run() returns,
// events behind all of it have been seen, the swaps' too.

#include "actors/gpu/device_swapper.hpp"
#include "actors/step_runner.hpp"
#include "models/gpu/gpu_transformer.hpp"

namespace kvhive {

class GpuRunner final : public StepRunner {
 public:
  /// \param swapper  the ring's own, before this runner; alive during run()
  /// \param copy     for copies within the device; reads `pairs` in the call
  /// \param arena    block 0 of the device tier, mapped by the model's device
  GpuRunner(GpuTransformer model, DeviceSwapper& swapper, CopyOnDevice copy, std::byte* arena,
            const KvLayout& layout)
      : model_(std::move(model)),
        swapper_(swapper),
        copy_(std::move(copy)),
        arena_(arena),
        layout_(layout) {}

  [[nodiscard]] Expected<std::vector<SampledToken>> run(const StepPlan& plan) override;

 private:
  bool comes_by_layers(const StepPlan& plan) const;
  [[nodiscard]] Expected<void> queue_copies(const StepPlan& plan) const;
  [[nodiscard]] Expected<std::vector<SampledToken>> compute(const StepPlan& plan);

  GpuTransformer model_;
  DeviceSwapper& swapper_;
  CopyOnDevice copy_;
  std::byte* arena_;
  KvLayout layout_;
};

}  // namespace kvhive
