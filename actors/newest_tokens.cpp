#include "actors/newest_tokens.hpp"

#include "base/check.hpp"

namespace kvhive {

NewestTokens::NewestTokens(std::span<const SampledToken> sampled) {
  tokens_.reserve(sampled.size());
  for (const SampledToken& each : sampled) tokens_.emplace_back(each.seq, each.token.token);
}

void NewestTokens::fill_in(StepPlan& plan) const {
  std::size_t next = 0;
  for (ScheduledSequence& work : plan.work) {
    if (!work.is_to_come) continue;
    for (std::size_t tried = 0; tokens_.size() > tried && tokens_[next].first != work.seq; ++tried)
      next = (next + 1) % tokens_.size();
    KV_CHECK(next < tokens_.size() && tokens_[next].first == work.seq, work.seq.value);
    work.tokens.back() = tokens_[next].second;
    if (work.logits) work.answer.push_back(work.tokens.back());
    work.is_to_come = false;
  }
}

}  // namespace kvhive
