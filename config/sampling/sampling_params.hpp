#pragma once
// How a request's tokens are chosen, and what is reported of each. Ranges, order and names are
// vLLM's (SamplingParams).

#include <cstdint>

#include "base/expected.hpp"
#include "base/ids.hpp"

namespace kvhive {

struct SamplingParams {
  float temperature = 0;  ///< 0 = greedy
  int top_k = 0;          ///< only the k likeliest (and those equal to the k-th); 0 or -1 = all
  float top_p = 1;        ///< the likeliest tokens whose probabilities first sum to this
  float min_p = 0;        ///< at least this share of the likeliest token's probability
  std::uint64_t seed = 0;
};

/// The params if each is in range; the error names the field.
[[nodiscard]] Expected<SamplingParams> checked(const SamplingParams& params);

struct Sampled {
  TokenId token = 0;
  float logprob = 0;  ///< log-softmax of the raw logits, before temperature, as vLLM reports it

  friend bool operator==(const Sampled&, const Sampled&) = default;
};

}  // namespace kvhive
