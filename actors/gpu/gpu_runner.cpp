#include "actors/gpu/gpu_runner.hpp"

#include "actors/choose_token.hpp"
#include "actors/prompt_scores.hpp"
#include "actors/step_batch.hpp"
#include "kernels/block_copy.hpp"

namespace kvhive {
namespace {

SampleChoice choice_of(const SampledRow& row) {
  const SamplingParams& params = row.work->sampling;
  return {.seed = params.seed,
          .position = row.position(),
          .temperature = params.temperature,
          .top_p = params.top_p,
          .min_p = params.min_p,
          .top_k = params.top_k,
          .likeliest = static_cast<std::int32_t>(row.work->logprobs)};
}

}  // namespace

/// Whether the runner waits for the copies to the device layer by layer. Not if the plan also
/// copies blocks within the device (copy on write): the source may be a block that is being copied
/// to the device, so all its layers must be complete before the first layer is computed.
bool GpuRunner::swaps_in_by_layers(const StepPlan& plan) const {
  return !plan.swap_in.empty() && !plan.work.empty() && plan.copies.empty() &&
         swapper_.parts().count() > 1;
}

/// Puts on the stream what must be done before the first layer: waiting for swaps, and copies
/// within the device.
Expected<void> GpuRunner::queue_copies(const StepPlan& plan) const {
  auto joined = swapper_.run_after_demotions(plan, model_.stream());
  if (joined && !swaps_in_by_layers(plan))
    joined = swapper_.run_after_swap_in(plan, model_.stream());
  if (!joined || plan.copies.empty()) return joined;
  return copy_(whole_blocks(arena_, arena_, layout_.block_bytes(), plan.copies),
               model_.stream().handle());
}

Expected<StepResults> GpuRunner::run(const StepPlan& plan) {
  if (auto queued = queue_copies(plan); !queued) return forward_error(queued);
  Expected<StepResults> results;
  if (plan.work.empty()) {
    if (auto done = model_.stream().finish(); !done) return forward_error(done);
  } else {
    results = compute(plan);
  }
  if (!results) return results;
  if (auto swapped = swapper_.finish(plan); !swapped) return forward_error(swapped);
  return results;
}

Expected<StepResults> GpuRunner::compute(const StepPlan& plan) {
  const StepBatch batch(plan, layout_.block_size, groups_);
  std::vector<SampleChoice> choices;
  for (const SampledRow& row : batch.sampled()) choices.push_back(choice_of(row));
  // Empty unless layers have to wait: a step with this function cannot run as a CUDA graph.
  BeforeLayer before_layer;
  if (swaps_in_by_layers(plan))
    before_layer = [&](std::int32_t slot) {
      return swapper_.run_after_layer(plan, slot, model_.stream());
    };
  if (auto started = model_.start(batch.view(), choices, arena_, layout_, before_layer); !started)
    return forward_error(started);
  auto samples = model_.wait();
  if (!samples) return forward_error(samples);

  std::vector<GeneratedToken> sampled;
  const auto K = static_cast<std::size_t>(samples->K);
  for (const SampledRow& wanted : batch.sampled()) {
    const std::size_t row = sampled.size();
    GeneratedToken token{samples->tokens[row], samples->logprobs[row], {}};
    for (std::size_t i = 0; i < wanted.work->logprobs; ++i)
      token.top.push_back(
          {samples->likeliest_tokens[row * K + i], samples->likeliest_logprobs[row * K + i]});
    sampled.push_back(std::move(token));
  }
  if (auto chosen = choose_by_rules(batch.sampled(), sampled); !chosen)
    return forward_error(chosen);
  // Last, since it overwrites the logits of the sampled rows.
  auto scored = score_prompts(plan, batch.view().query_start, model_.config(), logits_,
                              [this](std::span<const std::int32_t> rows, std::span<float> logits) {
                                return model_.further_logits(rows, logits);
                              });
  if (!scored) return forward_error(scored);
  return StepResults{accepted(batch.sampled(), std::move(sampled)), std::move(*scored)};
}

/// Rows whose requests have rules are chosen anew on the host.
Expected<void> GpuRunner::choose_by_rules(std::span<const SampledRow> rows,
                                          std::vector<GeneratedToken>& sampled) const {
  std::vector<std::size_t> ruled;
  for (std::size_t row = 0; row < rows.size(); ++row)
    if (rows[row].work->logits) ruled.push_back(row);
  if (ruled.empty()) return {};
  const std::size_t vocab = model_.config().vocab_size;
  std::vector<float> logits(ruled.size() * vocab);
  if (auto read = model_.read_logits(ruled, logits); !read) return read;
  for (std::size_t i = 0; i < ruled.size(); ++i) {
    const Sampled chosen =
        choose_token(rows[ruled[i]], std::span(logits).subspan(i * vocab, vocab));
    sampled[ruled[i]].token = chosen.token;
    sampled[ruled[i]].logprob = chosen.logprob;
  }
  return {};
}

}  // namespace kvhive
