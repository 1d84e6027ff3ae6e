#pragma once
// Runs steps on the CPU: makes the plan's copies, runs the transformer with the plan's block tables
// over the device arena, and samples the next tokens.

#include "actors/step_runner.hpp"
#include "config/kv_layout.hpp"
#include "models/transformer.hpp"

namespace kvhive {

class TransformerRunner : public StepRunner {
 public:
  /// \param arena  address of block 0 of the device tier; must stay mapped as long as the runner
  TransformerRunner(Transformer model, std::byte* arena, const KvLayout& layout)
      : model_(std::move(model)),
        arena_(arena),
        layout_(layout),
        groups_(groups_of(model_.config(), layout).groups.count) {}

  [[nodiscard]] Expected<StepResults> run(const StepPlan& plan) override;

 private:
  Transformer model_;
  std::byte* arena_;
  KvLayout layout_;
  std::uint32_t groups_;
  std::vector<float> logits_;
};

}  // namespace kvhive
