#include "actors/transformer_runner.hpp"

#include <algorithm>
#include <numeric>

#include "actors/choose_token.hpp"
#include "actors/step_batch.hpp"
#include "kernels/block_copy.hpp"
#include "models/sampling/sampler.hpp"

namespace kvhive {
namespace {

/// Logits below which threads are not woken: some ten microseconds of one core.
constexpr std::size_t kSerialLogits = std::size_t{1} << 16;

}  // namespace

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
  StepResults results{accepted(rows, std::move(sampled))};
  for (std::size_t i = 0; i < plan.work.size(); ++i)
    if (const ScheduledSequence& work = plan.work[i]; !work.scored.empty())
      results.scored.push_back(score(work, batch.view().query_start[i]));
  return results;
}

/// How likely the tokens are that the step scores, some at a time.
PromptScores TransformerRunner::score(const ScheduledSequence& work, std::int32_t first_row) {
  const std::size_t vocab = model_.config().vocab_size;
  const std::size_t most = scored_at_once(model_.config());
  PromptScores scores{work.seq, work.start + work.first_scored_row + 1, {}};
  scores.tokens.resize(work.scored.size());
  for (std::size_t done = 0; done < scores.tokens.size(); done += most) {
    std::vector<std::int32_t> rows(std::min(most, scores.tokens.size() - done));
    std::iota(rows.begin(), rows.end(),
              first_row + static_cast<std::int32_t>(work.first_scored_row + done));
    logits_.resize(rows.size() * vocab);
    model_.further_logits(rows, logits_);
#pragma omp parallel for schedule(dynamic) if (logits_.size() > kSerialLogits)
    for (std::size_t i = 0; i < rows.size(); ++i) {
      const std::span<const float> logits = std::span(logits_).subspan(i * vocab, vocab);
      PromptToken& token = scores.tokens[done + i];
      const Sampled own = logprob_of(logits, work.scored[done + i], token.rank);
      token.token = own.token;
      token.logprob = own.logprob;
      if (work.prompt_logprobs != 0)
        token.top = top_logprobs(logits, static_cast<int>(work.prompt_logprobs));
    }
  }
  return scores;
}

}  // namespace kvhive
