#pragma once
// Picks the next token from logits. The result depends only on logits, parameters and position, so
// a request gives the same text whatever other requests run and however often it is preempted.
//
// Source: the order of vLLM V1: temperature, min_p, top_k, top_p (v1/sample/sampler.py). vLLM's
// random numbers are not reproduced.

#include <cstdint>
#include <span>
#include <vector>

#include "config/sampling/sampling_params.hpp"

namespace kvhive {

/// \param logits    not empty. NaN counts as -infinity (impossible). Of equal logits, the one with
///                  the lowest id comes first. If all tokens are impossible, the result is token 0
/// \param position  the index that the new token will have in its sequence; each position of a
///                  seed has one random number
Sampled sample(std::span<const float> logits, const SamplingParams& params, std::uint64_t position);

/// The same for a token that is chosen from other logits (logits_processor.hpp) than those by which
/// its likelihood is reported.
Sampled sample(std::span<const float> logits, std::span<const float> chosen_from,
               const SamplingParams& params, std::uint64_t position);

/// How likely one token is.
/// \param rank  its place among all: 1 = the most likely one; of equal ones, the lowest id first
Sampled logprob_of(std::span<const float> logits, TokenId token, std::uint32_t& rank);

/// The k most likely tokens, the most likely first; of equal ones, the lowest id first.
std::vector<Sampled> top_logprobs(std::span<const float> logits, int k);

}  // namespace kvhive
