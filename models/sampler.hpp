#pragma once
// Picks the next token from logits: a pure function of (logits, params, position), so that a
// request gives the same text whatever ran beside it and however often it was preempted.
//
// Source: the order of vLLM V1: temperature, min_p, top_k, top_p (v1/sample/sampler.py). vLLM's
// random numbers are not reproduced.

#include <cstdint>
#include <span>
#include <vector>

#include "config/sampling_params.hpp"

namespace kvhive {

/// \param logits    not empty. NaN counts as impossible (-infinity); equal logits are taken lowest
///                  id first; if nothing is possible token 0 is taken.
/// \param position  the index the new token will have in its sequence; one random number each
Sampled sample(std::span<const float> logits, const SamplingParams& params, std::uint64_t position);

/// The k likeliest tokens, likeliest first, equal ones lowest id first.
std::vector<Sampled> top_logprobs(std::span<const float> logits, int k);

}  // namespace kvhive
