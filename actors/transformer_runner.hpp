#pragma once
// Runs steps on the CPU: makes the plan's copies, runs the transformer with the plan's block tables
// over the device arena, and samples the next tokens.

#include <algorithm>

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

  /// So many tokens of a prompt are scored at a time: their logits are 32 MiB, or one row.
  static std::size_t scored_at_once(const ModelConfig& config) {
    return std::max<std::size_t>(1, (std::size_t{1} << 23) / config.vocab_size);
  }

  [[nodiscard]] Expected<StepResults> run(const StepPlan& plan) override;

 private:
  PromptScores score(const ScheduledSequence& work, std::int32_t first_row);

  Transformer model_;
  std::byte* arena_;
  KvLayout layout_;
  std::uint32_t groups_;
  std::vector<float> logits_;
};

}  // namespace kvhive
