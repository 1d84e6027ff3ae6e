#pragma once
// How likely a prompt's tokens are, by the logits of a step: prompt_logprobs.

#include <algorithm>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "actors/messages.hpp"
#include "models/config/model_config.hpp"

namespace kvhive {

/// So many tokens of a prompt are scored at a time: their logits are 32 MiB, or one row.
inline std::size_t scored_at_once(const ModelConfig& config) {
  return std::max<std::size_t>(1, (std::size_t{1} << 23) / config.vocab_size);
}

/// Gives the logits [rows, vocab] of some rows of the step that was computed last.
using FurtherLogits =
    std::function<Expected<void>(std::span<const std::int32_t> rows, std::span<float> logits)>;

/// The scores of all prompts that the step scores.
///
/// \param query_start  the step's (ForwardBatch)
/// \param logits       room, which may be kept for the next step
[[nodiscard]] Expected<std::vector<PromptScores>> score_prompts(
    const StepPlan& plan, std::span<const std::int32_t> query_start, const ModelConfig& config,
    std::vector<float>& logits, const FurtherLogits& further_logits);

}  // namespace kvhive
