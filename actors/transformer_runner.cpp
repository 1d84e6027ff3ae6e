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
  std::vector<SampledToken> sampled;
  if (plan.work.empty()) return sampled;

  const StepBatch batch(plan, layout_.block_size, groups_);
  const std::size_t vocab = model_.config().vocab_size;
  logits_.resize(batch.logit_rows() * vocab);
  model_.forward(batch.view(), arena_, layout_, logits_);

  std::vector<const ScheduledSequence*> sampling;
  for (const auto& work : plan.work)
    if (work.samples) sampling.push_back(&work);
  sampled.resize(sampling.size());
#pragma omp parallel for schedule(dynamic) if (logits_.size() > kSerialLogits)
  for (std::size_t i = 0; i < sampling.size(); ++i) {
    const ScheduledSequence& work = *sampling[i];
    const std::span<const float> logits = std::span(logits_).subspan(i * vocab, vocab);
    const Sampled next = sample(logits, work.sampling, work.start + work.tokens.size());
    GeneratedToken token{next.token, next.logprob, {}};
    if (work.logprobs != 0) token.top = top_logprobs(logits, static_cast<int>(work.logprobs));
    sampled[i] = {work.seq, std::move(token)};
  }
  return sampled;
}

}  // namespace kvhive
