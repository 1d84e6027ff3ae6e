#pragma once
// Picks the next token of every row of logits, as models/sampler.hpp does on the CPU: a pure
// function of (logits, choice).

#include <cstdint>
#include <limits>
#include <type_traits>

namespace kvhive {

/// How one row's token is chosen; ranges and order as in models/sampler.hpp.
struct SampleChoice {
  std::uint64_t seed = 0;
  std::uint64_t position = 0;  ///< index the new token will have in its sequence
  float temperature = 0;       ///< below kGreedyBelow the likeliest is taken
  float top_p = 1;
  float min_p = 0;
  std::int32_t top_k = 0;  ///< 0 or -1 = all
  std::int32_t likeliest =
      0;  ///< how many of the likeliest tokens to report, at most SampleArgs::K
};
static_assert(std::is_trivially_copyable_v<SampleChoice>);

struct SampleArgs {
  const float* logits = nullptr;          ///< [n, vocab]
  const SampleChoice* choices = nullptr;  ///< [n]
  std::int32_t* tokens = nullptr;         ///< [n]
  float* logprobs = nullptr;              ///< [n] of the tokens: log-softmax of the raw logits
  /// [n, K] the likeliest tokens, likeliest first; entries past what a row reports, and past the
  /// vocabulary, are not written. Null: K is 0.
  std::int32_t* likeliest_tokens = nullptr;
  float* likeliest_logprobs = nullptr;
  std::int32_t n = 0, vocab = 0, K = 0;
};
static_assert(std::is_trivially_copyable_v<SampleArgs>);

/// vLLM's bound: colder than this is greedy, instead of overflowing.
inline constexpr float kGreedyBelow = 1e-5f;

/// A logit that can be compared and subtracted: NaN is impossible, +infinity merely huge.
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

/// One thread, everything sorted. \param margins  [n] or null: how much each row's random share, or
/// a share of the total weight that a cut compares, would have to move for another token. Where it
/// is below about 1e-9, two ways of adding may choose differently.
void sample_reference(const SampleArgs& args, double* margins = nullptr);

}  // namespace kvhive
