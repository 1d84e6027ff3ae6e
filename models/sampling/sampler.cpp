#include "models/sampling/sampler.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/check.hpp"
#include "kernels/sampling.hpp"
#include "models/sampling/logits.hpp"

namespace kvhive {
namespace {

/// The order of tokens: the more likely first; of equal ones, the lower id first.
bool before(const Sampled& a, const Sampled& b) {
  return a.logprob != b.logprob ? a.logprob > b.logprob : a.token < b.token;
}

/// log(sum(exp(logit))). The largest logit is subtracted first, so that exp() does not overflow.
double log_total(std::span<const float> logits, float largest) {
  if (std::isinf(largest)) return 0;  // nothing is possible: every logprob is -infinity
  return double{largest} + std::log(total_weight(logits, largest));
}

Sampled with_logprob(std::span<const float> logits, float largest, std::size_t index) {
  return {static_cast<TokenId>(index),
          static_cast<float>(usable_logit(logits[index]) - log_total(logits, largest))};
}

/// A token and its probability relative to the likeliest one's.
struct Candidate {
  TokenId token = 0;
  double weight = 0;
};

bool lighter(const Candidate& a, const Candidate& b) {
  return a.weight != b.weight ? a.weight < b.weight : a.token > b.token;
}

std::vector<Candidate> candidates_of(std::span<const float> logits, float largest,
                                     const SamplingParams& params) {
  if (std::isinf(largest)) return {};
  std::vector<double> weights(logits.size());
  relative_weights(logits, largest, params.temperature, weights);
  std::vector<Candidate> candidates;
  candidates.reserve(logits.size());
  for (std::size_t i = 0; i < logits.size(); ++i)
    if (weights[i] > 0 && weights[i] >= params.min_p)
      candidates.push_back({static_cast<TokenId>(i), weights[i]});
  return candidates;
}

void keep_top_k(std::vector<Candidate>& candidates, int k) {
  if (k <= 0 || std::size_t(k) >= candidates.size()) return;
  std::vector<Candidate> sorted(candidates);
  std::nth_element(sorted.begin(), sorted.begin() + (k - 1), sorted.end(),
                   [](const auto& a, const auto& b) { return lighter(b, a); });
  const double least = sorted[k - 1].weight;
  std::erase_if(candidates, [&](const Candidate& candidate) { return candidate.weight < least; });
}

double total_weight(const std::vector<Candidate>& candidates) {
  return std::accumulate(candidates.begin(), candidates.end(), 0.0,
                         [](double sum, const Candidate& c) { return sum + c.weight; });
}

/// Keeps the candidates with the largest weights whose sum reaches the share p of the total, at
/// least one. Takes them from a heap, which is faster than sorting a whole vocabulary if few are
/// needed, as is usual.
void keep_top_p(std::vector<Candidate>& candidates, double p) {
  if (p >= 1) return;
  const double enough = p * total_weight(candidates);
  std::make_heap(candidates.begin(), candidates.end(), lighter);
  double weight = 0;
  auto kept_from = candidates.end();
  do {
    std::pop_heap(candidates.begin(), kept_from, lighter);
    --kept_from;
    weight += kept_from->weight;
  } while (weight < enough && kept_from != candidates.begin());
  candidates.erase(candidates.begin(), kept_from);
}

TokenId draw(const std::vector<Candidate>& candidates, double share) {
  double left = share * total_weight(candidates);
  for (const auto& candidate : candidates) {
    left -= candidate.weight;
    if (left < 0) return candidate.token;
  }
  return candidates.back().token;  // reached only because of rounding errors in the sum
}

std::size_t choose(std::span<const float> logits, std::size_t likeliest,
                   const SamplingParams& params, std::uint64_t position) {
  if (params.temperature < kGreedyBelow) return likeliest;
  auto candidates = candidates_of(logits, usable_logit(logits[likeliest]), params);
  if (candidates.empty()) return 0;
  keep_top_k(candidates, params.top_k);
  keep_top_p(candidates, params.top_p);
  return static_cast<std::size_t>(draw(candidates, random_share(params.seed, position)));
}

}  // namespace

Sampled sample(std::span<const float> logits, const SamplingParams& params,
               std::uint64_t position) {
  KV_CHECK(!logits.empty());
  const std::size_t likeliest = index_of_largest(logits);
  return with_logprob(logits, usable_logit(logits[likeliest]),
                      choose(logits, likeliest, params, position));
}

Sampled sample(std::span<const float> logits, std::span<const float> chosen_from,
               const SamplingParams& params, std::uint64_t position) {
  KV_CHECK(!logits.empty() && logits.size() == chosen_from.size(), logits.size(),
           chosen_from.size());
  return with_logprob(logits, usable_logit(logits[index_of_largest(logits)]),
                      choose(chosen_from, index_of_largest(chosen_from), params, position));
}

Sampled logprob_of(std::span<const float> logits, TokenId token, std::uint32_t& rank) {
  const auto index = static_cast<std::size_t>(token);
  KV_CHECK(token >= 0 && index < logits.size(), token, logits.size());
  const double total = log_total(logits, usable_logit(logits[index_of_largest(logits)]));
  const auto logprob = [&](std::size_t i) {
    return static_cast<float>(usable_logit(logits[i]) - total);
  };
  const float own = logprob(index);
  rank = 1;
  for (std::size_t i = 0; i < logits.size(); ++i) {
    const float other = logprob(i);
    rank += other > own || (other == own && i < index);
  }
  return {token, own};
}

std::vector<Sampled> top_logprobs(std::span<const float> logits, int k) {
  KV_CHECK(!logits.empty() && k >= 0, logits.size(), k);
  const double total = log_total(logits, usable_logit(logits[index_of_largest(logits)]));
  std::vector<Sampled> all(logits.size());
  for (std::size_t i = 0; i < logits.size(); ++i)
    all[i] = {static_cast<TokenId>(i), static_cast<float>(usable_logit(logits[i]) - total)};
  const auto count = std::min<std::size_t>(k, all.size());
  std::partial_sort(all.begin(), all.begin() + count, all.end(), before);
  all.resize(count);
  return all;
}

}  // namespace kvhive
