#pragma once
// What a client may ask for and what it gets: the plain types that channel, scheduler and client
// library share.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/expected.hpp"
#include "base/ids.hpp"
#include "config/sampling_params.hpp"

namespace kvhive {

struct GenerationParams {
  std::uint32_t max_tokens = 16;
  SamplingParams sampling;  ///< greedy unless told otherwise
  /// Report the K most likely tokens of each position, at most kMostLogprobs.
  std::uint32_t logprobs = 0;
  bool ignore_eos = false;    ///< go on after an end-of-sequence token
  std::int32_t priority = 0;  ///< lower goes first, with the priority policy
  /// Generation ends before any of these strings; they are cut off the text.
  std::vector<std::string> stop;
  /// Whether the caller chose sampling.seed. If not, the client library has drawn one at random,
  /// and an engine with --seed uses its own.
  bool has_seed = false;
  std::vector<TokenId> stop_token_ids;  ///< generation ends after any of these tokens
};
inline constexpr std::uint32_t kMostLogprobs = 20;

enum class FinishReason : std::uint32_t {
  none = 0,    ///< still running
  stop = 1,    ///< an end-of-sequence token, a stop string or a stop token
  length = 2,  ///< max_tokens or the model's length reached
  abort = 3,   ///< the client asked for it
  error = 4,   ///< refused or failed; a text says why
};

constexpr std::string_view to_string(FinishReason reason) {
  switch (reason) {
    case FinishReason::none: return "none";
    case FinishReason::stop: return "stop";
    case FinishReason::length: return "length";
    case FinishReason::abort: return "abort";
    case FinishReason::error: return "error";
  }
  return "unknown";
}

/// One generated token.
struct GeneratedToken {
  TokenId token = 0;
  float logprob = 0;
  std::vector<Sampled> top;  ///< most likely first; empty unless asked for
};

/// Figures known when a request is admitted or ends.
struct RequestStats {
  std::uint32_t prompt_tokens = 0;
  std::uint32_t cached_tokens = 0;  ///< of the prompt, found in the pool when it was first admitted
  std::uint32_t preemptions = 0;
};

}  // namespace kvhive
