#include "actors/transformer_runner.hpp"

#include "actors/step_batch.hpp"
#include "kernels/block_copy.hpp"
#include "models/sampling/sampler.hpp"

namespace kvhive {
namespace {

/// Logits below which threads are not woken: some ten microseconds of one core.
constexpr std::size_t kSerialLogits = std::size_t{1} << 16;

}  // namespace

Expected<std::vector<SampledToken>> TransformerRunner::run(const StepPlan& plan) {
  block_copy_cpu(whole_blocks(arena_, arena_, layout_.block_bytes(), plan.copies));
  if (plan.work.empty()) return std::vector<SampledToken>();

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
    const Sampled next = sample(logits, work.sampling, rows[i].position());
    sampled[i] = {next.token, next.logprob, {}};
    if (work.logprobs != 0) sampled[i].top = top_logprobs(logits, static_cast<int>(work.logprobs));
  }
  return accepted(rows, std::move(sampled));
}

}  // namespace kvhive
