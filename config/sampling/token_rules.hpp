#pragma once
// What a request asks of its tokens beyond their likelihood. Names, ranges and meaning are vLLM's
// (SamplingParams); what they make of the logits: models/sampling/logits_processor.hpp.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/expected.hpp"
#include "base/ids.hpp"

namespace kvhive {

struct TokenBias {
  TokenId token = 0;
  float bias = 0;

  friend bool operator==(const TokenBias&, const TokenBias&) = default;
};

struct TokenRules {
  float presence_penalty = 0;    ///< -2..2: taken from the logits of tokens that the answer has
  float frequency_penalty = 0;   ///< -2..2: the same for each time that the answer has them
  float repetition_penalty = 1;  ///< above 0: divides positive logits of tokens that the prompt or
                                 ///< the answer has, and multiplies negative ones
  /// So many tokens come before one that ends the answer, or before the text that does.
  std::uint32_t min_tokens = 0;
  std::vector<TokenBias> logit_bias{};       ///< added to logits, at most kMostBiases
  std::vector<TokenId> allowed_token_ids{};  ///< empty = all, else at most kMostAllowedTokens
  /// Texts that are not to be generated, at most kMostBadWords of kBadWordBytes bytes. Only the
  /// last token of one is forbidden, where those before it have been generated.
  std::vector<std::string> bad_words{};

  /// The logits are used as the model gives them.
  bool change_no_logits() const;
  friend bool operator==(const TokenRules&, const TokenRules&) = default;
};
inline constexpr std::size_t kMostBiases = 1024;
inline constexpr std::size_t kMostAllowedTokens = std::size_t{1} << 18;
inline constexpr std::size_t kMostBadWords = 128;
inline constexpr std::size_t kBadWordBytes = 64;

/// Errc::bad_argument if the model has not all of these tokens. `field` is named in front of it.
[[nodiscard]] Expected<void> check_vocabulary(std::span<const TokenId> tokens,
                                              std::uint32_t vocab_size,
                                              const std::string& field = {});

/// Nothing if each is in range; the error names the field. Whether the model has the tokens is not
/// known here.
[[nodiscard]] Expected<void> check(const TokenRules& rules);

}  // namespace kvhive
