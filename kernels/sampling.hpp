#pragma once
// Picks the next token for every row of logits, by the rules of models/sampling/sampler.hpp: a pure
// function of (logits, choice).

#include <cstdint>
#include <limits>
#include <type_traits>

namespace kvhive {

/// How the token of one row is chosen. Ranges and the order of the cuts are those of
/// models/sampling/sampler.hpp.
struct SampleChoice {
  std::uint64_t seed = 0;
  std::uint64_t position = 0;  ///< index of the new token in its sequence
  float temperature = 0;       ///< below kGreedyBelow: the likeliest token is taken
  float top_p = 1;
  float min_p = 0;
  std::int32_t top_k = 0;      ///< 0 or -1: no limit
  std::int32_t likeliest = 0;  ///< likeliest tokens to report, at most SampleArgs::K
};
static_assert(std::is_trivially_copyable_v<SampleChoice>);

struct SampleArgs {
  const float* logits = nullptr;          ///< [n, vocab]
  const SampleChoice* choices = nullptr;  ///< [n]
  std::int32_t* tokens = nullptr;         ///< [n]
  float* logprobs = nullptr;  ///< [n] log-softmax of the raw logits at the chosen tokens
  /// [n, K] the likeliest tokens, likeliest first. Entries past choices[row].likeliest, and past
  /// the vocabulary's size, are not written. Null if K is 0.
  std::int32_t* likeliest_tokens = nullptr;
  float* likeliest_logprobs = nullptr;
  std::int32_t n = 0, vocab = 0, K = 0;
};
static_assert(std::is_trivially_copyable_v<SampleArgs>);

/// vLLM's bound: dividing by a lower temperature could overflow.
inline constexpr float kGreedyBelow = 1e-5f;

/// The logit with NaN taken for -infinity (an impossible token) and +infinity for the largest
/// float, so that logits can be compared and subtracted.
constexpr float usable_logit(float logit) {
  if (logit != logit) return -std::numeric_limits<float>::infinity();
  constexpr float kLargest = std::numeric_limits<float>::max();
  return logit < kLargest ? logit : kLargest;
}

/// Uniform in [0, 1): splitmix64 over the seed and the position (Steele et al., 2014).
constexpr double random_share(std::uint64_t seed, std::uint64_t position) {
  const auto mix = [](std::uint64_t x) {
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
  };
  return static_cast<double>(mix(mix(seed) ^ position) >> 11) * 0x1p-53;
}

/// One thread; sorts every row. \param margins [n] or null. For each row: by how much its random
/// share, or the share of the total weight that a cut compares with, would have to change for
/// another token to be chosen. Below about 1e-9, two orders of addition may choose different
/// tokens.
void sample_reference(const SampleArgs& args, double* margins = nullptr);

}  // namespace kvhive
