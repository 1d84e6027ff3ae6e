#include "tools/serve/openai/beam_search.hpp"

#include <algorithm>
#include <cmath>
#include <functional>
#include <utility>

namespace kvhive {
namespace {

struct Candidate {
  std::size_t beam = 0;
  TokenLogprob token;
  double logprob = 0;  ///< of the beam with the token
};

bool has(const std::vector<TokenId>& tokens, TokenId token) {
  return std::ranges::find(tokens, token) != tokens.end();
}

Beam::Token token_of(const TokenLogprob& token, const OutputToken& next) {
  return std::make_shared<const OutputToken>(OutputToken{token.token, token.logprob, next.top});
}

}  // namespace

void BeamSearch::extend(const std::vector<OutputToken>& next) {
  std::vector<Candidate> candidates;
  for (std::size_t i = 0; i < beams_.size(); ++i) {
    for (const TokenLogprob& token : next[i].top) {
      const double logprob = beams_[i].logprob + token.logprob;
      if (has(rules_.end_tokens, token.token) && !rules_.ignores_end)
        ended_.push_back({beams_[i].tokens, logprob, token_of(token, next[i])});
      else
        candidates.push_back({i, token, logprob});
    }
  }
  std::ranges::stable_sort(candidates, std::greater(), &Candidate::logprob);
  candidates.resize(std::min(candidates.size(), rules_.width));
  std::vector<Beam> longer;
  for (const Candidate& each : candidates) {
    longer.push_back({beams_[each.beam].tokens, each.logprob});
    longer.back().tokens.push_back(token_of(each.token, next[each.beam]));
  }
  beams_ = std::move(longer);
  if (!beams_.empty() && beams_.front().tokens.size() >= rules_.max_tokens) {
    ended_.insert(ended_.end(), beams_.begin(), beams_.end());
    beams_.clear();
  }
  keep_best();
}

/// What has ended has its final score: the others will never be among the best.
void BeamSearch::keep_best() {
  std::ranges::stable_sort(ended_, std::greater(),
                           [this](const Beam& beam) { return score(beam); });
  ended_.resize(std::min(ended_.size(), rules_.width));
}

double BeamSearch::score(const Beam& beam) const {
  const std::size_t length = beam.tokens.size() + (beam.end ? 1 : 0);
  return beam.logprob / std::pow(length, rules_.length_penalty);
}

}  // namespace kvhive
