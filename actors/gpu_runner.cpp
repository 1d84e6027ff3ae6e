#include "actors/gpu_runner.hpp"

#include "actors/step_batch.hpp"
#include "kernels/block_copy.hpp"

namespace kvhive {
namespace {

SampleChoice choice_of(const ScheduledSequence& work) {
  const SamplingParams& params = work.sampling;
  return {.seed = params.seed,
          .position = work.start + work.tokens.size(),
          .temperature = params.temperature,
          .top_p = params.top_p,
          .min_p = params.min_p,
          .top_k = params.top_k,
          .likeliest = static_cast<std::int32_t>(work.logprobs)};
}

}  // namespace

/// What has to be in place before any block is read.
Expected<void> GpuRunner::move(const StepPlan& plan) const {
  if (auto joined = swapper_.join(plan, model_.lane()); !joined) return joined;
  if (plan.copies.empty()) return {};
  return copy_(whole_blocks(arena_, arena_, layout_.block_bytes(), plan.copies),
               model_.lane().stream());
}

Expected<std::vector<SampledToken>> GpuRunner::run(const StepPlan& plan) {
  std::vector<SampledToken> sampled;
  if (auto moved = move(plan); !moved) return forward_error(moved);
  if (plan.work.empty()) {
    if (auto done = model_.lane().finish(); !done) return forward_error(done);
    return sampled;
  }
  const StepBatch batch(plan, layout_.block_size);
  std::vector<SampleChoice> choices;
  for (const auto& work : plan.work)
    if (work.samples) choices.push_back(choice_of(work));
  if (auto started = model_.start(batch.view(), choices, arena_, layout_); !started)
    return forward_error(started);
  auto samples = model_.wait();
  if (!samples) return forward_error(samples);

  const auto K = static_cast<std::size_t>(samples->K);
  for (const auto& work : plan.work) {
    if (!work.samples) continue;
    const std::size_t row = sampled.size();
    GeneratedToken token{samples->tokens[row], samples->logprobs[row], {}};
    for (std::size_t i = 0; i < work.logprobs; ++i)
      token.top.push_back(
          {samples->likeliest_tokens[row * K + i], samples->likeliest_logprobs[row * K + i]});
    sampled.push_back({work.seq, std::move(token)});
  }
  return sampled;
}

}  // namespace kvhive
