#pragma once
// Runs steps on a GPU: joins the plan's block tables with the device arena, waits for the plan's
// swaps on the device, samples there. When run() returns, an event behind all of it has been seen.

#include "actors/device_swapper.hpp"
#include "actors/step_runner.hpp"
#include "models/gpu_transformer.hpp"

namespace kvhive {

class GpuRunner final : public StepRunner {
 public:
  /// \param swapper  the ring's own, before this runner; outlives it
  /// \param copy     for copies within the device
  /// \param arena    block 0 of the device tier, mapped by the model's device
  GpuRunner(GpuTransformer model, const DeviceSwapper& swapper, CopyOnDevice copy, std::byte* arena,
            const KvLayout& layout)
      : model_(std::move(model)),
        swapper_(swapper),
        copy_(std::move(copy)),
        arena_(arena),
        layout_(layout) {}

  Expected<std::vector<SampledToken>> run(const StepPlan& plan) override;

 private:
  Expected<void> move(const StepPlan& plan) const;

  GpuTransformer model_;
  const DeviceSwapper& swapper_;
  CopyOnDevice copy_;
  std::byte* arena_;
  KvLayout layout_;
};

}  // namespace kvhive
