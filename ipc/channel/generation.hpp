#pragma once
// The parameters and results of a request: plain types that channel, scheduler and client library
// share.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/expected.hpp"
#include "base/ids.hpp"
#include "config/sampling/sampling_params.hpp"
#include "config/sampling/token_rules.hpp"

namespace kvhive {

struct GenerationParams {
  std::uint32_t max_tokens = 16;
  SamplingParams sampling;  ///< greedy by default
  /// Report the K most likely tokens of each position, at most kMostLogprobs.
  std::uint32_t logprobs = 0;
  /// Score the prompt: report the log-probability of each of its tokens and the K most likely ones
  /// in its place. Such a request never reads the cache: what is cached has no logits.
  std::optional<std::uint32_t> prompt_logprobs{};
  bool ignore_eos = false;    ///< go on generating after an end-of-sequence token
  std::int32_t priority = 0;  ///< lower numbers are served first, if the policy is `priority`
  /// Generation ends when the text contains one of these strings; the text is cut before it.
  std::vector<std::string> stop;
  /// True = the caller chose sampling.seed. False = the client library drew it at random, and an
  /// engine that was started with --seed uses its own seed instead.
  bool has_seed = false;
  std::vector<TokenId> stop_token_ids;  ///< generation ends after any of these tokens
  /// Prompts with different salts share no cached blocks. Empty = none.
  std::string cache_salt{};
  /// The name of the adapter to compute with (option lora-modules). Empty = none.
  std::string adapter{};
  TokenRules rules{};
  /// A stop string stays in the text that it ends.
  bool include_stop = false;
  /// Nothing is generated: the request ends as soon as an engine has said whether the prompt finds
  /// room (RoomStatus). It neither waits in the queue nor changes what is cached.
  bool only_asks = false;
  /// Others go on from the request's tokens as soon as it has ended: what an engine has computed of
  /// its last block is kept for them a moment, and they copy it.
  bool will_be_forked = false;
};
inline constexpr std::uint32_t kMostLogprobs = 20;

enum class FinishReason : std::uint32_t {
  none = 0,    ///< still running
  stop = 1,    ///< an end-of-sequence token, a stop string or a stop token
  length = 2,  ///< max_tokens or the model's length reached
  abort = 3,   ///< the client asked to end the request
  error = 4,   ///< refused or failed; a text says why
  room = 5,    ///< it only asked for room (GenerationParams::only_asks), and has its answer
};

constexpr std::string_view to_string(FinishReason reason) {
  switch (reason) {
    case FinishReason::none: return "none";
    case FinishReason::stop: return "stop";
    case FinishReason::length: return "length";
    case FinishReason::abort: return "abort";
    case FinishReason::error: return "error";
    case FinishReason::room: return "room";
  }
  return "unknown";
}

/// One generated token.
struct GeneratedToken {
  TokenId token = 0;
  float logprob = 0;
  std::vector<Sampled> top;  ///< most likely first; empty unless asked for
};

/// How likely a token of the prompt is behind those before it. The first has nothing before it:
/// its logprob and rank are 0.
struct PromptToken {
  TokenId token = 0;
  float logprob = 0;
  std::uint32_t rank = 0;    ///< 1 = the most likely one; of equal ones, the lowest id comes first
  std::vector<Sampled> top;  ///< most likely first

  friend bool operator==(const PromptToken&, const PromptToken&) = default;
};

/// When things happened to a request: nanoseconds of the machine's monotonic clock; 0 = not yet.
/// Engines write them; a client's clock is not asked.
struct RequestTimes {
  std::uint64_t taken = 0;     ///< the first engine took it out of the channel
  std::uint64_t admitted = 0;  ///< for the first time
  std::uint64_t first_token = 0;
};

/// Statistics of one request, reported when it is admitted and when it ends.
struct RequestStats {
  std::uint32_t prompt_tokens = 0;
  /// Tokens of the prompt that were found in the pool when the request was first admitted.
  std::uint32_t cached_tokens = 0;
  std::uint32_t preemptions = 0;
};

/// Whether a prompt finds room (vLLM V0: AllocStatus of BlockSpaceManager.can_allocate).
enum class AllocStatus : std::uint32_t {
  none = 0,   ///< nobody has said
  ok = 1,     ///< there is room for all its tokens now
  later = 2,  ///< there is not, but there may be
  never = 3,  ///< it is longer than the model or the pool ever allows
};

constexpr std::string_view to_string(AllocStatus status) {
  switch (status) {
    case AllocStatus::none: return "none";
    case AllocStatus::ok: return "ok";
    case AllocStatus::later: return "later";
    case AllocStatus::never: return "never";
  }
  return "unknown";
}

/// The answer to a request that only asks. In blocks of the device tier.
struct RoomStatus {
  AllocStatus status = AllocStatus::none;
  std::uint32_t needed_blocks = 0;     ///< besides those that are found and already held
  std::uint32_t available_blocks = 0;  ///< that an allocation of the request's domain may take
  std::uint32_t cached_tokens = 0;     ///< that need not be computed
};

}  // namespace kvhive
