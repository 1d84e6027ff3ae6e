#pragma once
// Picks the next token from logits: a pure function of (logits, params, position), so that a
// request gives the same text whatever ran beside it and however often it was preempted.
//
// Source: the order of vLLM V1: temperature, min_p, top_k, top_p (v1/sample/sampler.py). vLLM's
// random numbers are not reproduced.

#include <cstdint>
#include <span>
#include <vector>

#include "config/expected.hpp"
#include "config/ids.hpp"

namespace kvhive {

struct SamplingParams {
  float temperature = 0;  ///< 0 = greedy
  int top_k = 0;          ///< only the k likeliest (and those equal to the k-th); 0 or -1 = all
  float top_p = 1;        ///< the likeliest tokens whose probabilities first sum to this
  float min_p = 0;        ///< at least this share of the likeliest token's probability
  std::uint64_t seed = 0;
};

/// The params if each is in range; the error names the field.
Expected<SamplingParams> checked(const SamplingParams& params);

struct Sampled {
  TokenId token = 0;
  float logprob = 0;  ///< log-softmax of the raw logits, before temperature, as vLLM reports it
};

/// \param logits    not empty. NaN counts as impossible (-infinity); equal logits are taken lowest
///                  id first; if nothing is possible token 0 is taken.
/// \param position  the index the new token will have in its sequence; one random number each
Sampled sample(std::span<const float> logits, const SamplingParams& params, std::uint64_t position);

/// The k likeliest tokens, likeliest first, equal ones lowest id first.
std::vector<Sampled> top_logprobs(std::span<const float> logits, int k);

}  // namespace kvhive
