#include "actors/prompt_scores.hpp"

#include <numeric>

#include "actors/choose_token.hpp"
#include "models/sampling/sampler.hpp"

namespace kvhive {
namespace {

PromptToken score(std::span<const float> logits, TokenId of, std::uint32_t likeliest) {
  PromptToken token;
  const Sampled own = logprob_of(logits, of, token.rank);
  token.token = own.token;
  token.logprob = own.logprob;
  if (likeliest != 0) token.top = top_logprobs(logits, static_cast<int>(likeliest));
  return token;
}

}  // namespace

Expected<std::vector<PromptScores>> score_prompts(const StepPlan& plan,
                                                  std::span<const std::int32_t> query_start,
                                                  const ModelConfig& config,
                                                  std::vector<float>& logits,
                                                  const FurtherLogits& further_logits) {
  const std::size_t vocab = config.vocab_size, most = scored_at_once(config);
  std::vector<PromptScores> all;
  for (std::size_t s = 0; s < plan.work.size(); ++s) {
    const ScheduledSequence& work = plan.work[s];
    if (work.scored.empty()) continue;
    PromptScores scores{work.seq, work.start + work.first_scored_row + 1, {}};
    scores.tokens.resize(work.scored.size());
    const std::int32_t first_row =
        query_start[s] + static_cast<std::int32_t>(work.first_scored_row);
    for (std::size_t done = 0; done < scores.tokens.size(); done += most) {
      std::vector<std::int32_t> rows(std::min(most, scores.tokens.size() - done));
      std::iota(rows.begin(), rows.end(), first_row + static_cast<std::int32_t>(done));
      logits.resize(rows.size() * vocab);
      if (auto given = further_logits(rows, logits); !given) return forward_error(given);
#pragma omp parallel for schedule(dynamic) if (logits.size() > kSerialLogits)
      for (std::size_t i = 0; i < rows.size(); ++i)
        scores.tokens[done + i] = score(std::span(logits).subspan(i * vocab, vocab),
                                        work.scored[done + i], work.prompt_logprobs);
    }
    all.push_back(std::move(scores));
  }
  return all;
}

}  // namespace kvhive
