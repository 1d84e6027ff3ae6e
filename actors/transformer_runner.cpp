#include "actors/transformer_runner.hpp"

#include <utility>

#include "actors/choose_token.hpp"
#include "actors/prompt_scores.hpp"
#include "actors/step_batch.hpp"
#include "kernels/block_copy.hpp"
#include "models/sampling/sampler.hpp"

namespace kvhive {

Expected<StepResults> TransformerRunner::run(const StepPlan& plan) {
  block_copy_cpu(whole_blocks(arena_, arena_, layout_.block_bytes(), plan.copies));
  if (plan.work.empty()) return StepResults{};

  const StepBatch batch(plan, layout_.block_size, groups_);
  const std::size_t vocab = model_.config().vocab_size;
  const std::span<const SampledRow> rows = batch.sampled();
  logits_.resize(rows.size() * vocab);
  model_.forward(batch.view(), arena_, layout_, logits_);

  std::vector<GeneratedToken> sampled(rows.size());
#pragma omp parallel for schedule(dynamic) if (logits_.size() > kSerialLogits)
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const ScheduledSequence& work = *rows[i].work;
    const std::span<const float> logits = std::span(logits_).subspan(i * vocab, vocab);
    const Sampled next = choose_token(rows[i], logits);
    sampled[i] = {next.token, next.logprob, {}};
    if (work.logprobs != 0) sampled[i].top = top_logprobs(logits, static_cast<int>(work.logprobs));
  }
  auto scored = score_prompts(plan, batch.view().query_start, model_.config(), logits_,
                              [this](std::span<const std::int32_t> of, std::span<float> logits) {
                                model_.further_logits(of, logits);
                                return Expected<void>{};
                              });
  if (!scored) return forward_error(scored);
  return StepResults{accepted(rows, std::move(sampled)), std::move(*scored)};
}

}  // namespace kvhive
