#include "config/sampling/token_rules.hpp"

#include <cmath>
#include <sstream>

namespace kvhive {
namespace {

tl::unexpected<Error> bad(const std::string& field, const std::string& text) {
  return failure(Errc::bad_argument, "sampling: " + field + text);
}

tl::unexpected<Error> out_of_range(const std::string& field, double value, const char* wanted) {
  std::ostringstream text;
  text << " = " << value << ", expected " << wanted;
  return bad(field, text.str());
}

tl::unexpected<Error> too_many(const char* field, std::size_t count, std::size_t most) {
  return bad(field, " has " + std::to_string(count) + " entries; at most " + std::to_string(most));
}

}  // namespace

bool TokenRules::change_no_logits() const {
  return presence_penalty == 0 && frequency_penalty == 0 && repetition_penalty == 1 &&
         min_tokens == 0 && logit_bias.empty() && allowed_token_ids.empty() && bad_words.empty();
}

Expected<void> check_vocabulary(std::span<const TokenId> tokens, std::uint32_t vocab_size,
                                const std::string& field) {
  for (const TokenId token : tokens)
    if (token < 0 || static_cast<std::uint32_t>(token) >= vocab_size)
      return failure(Errc::bad_argument,
                     (field.empty() ? "" : field + ": ") + "token id " + std::to_string(token) +
                         " is not in the model's vocabulary of " + std::to_string(vocab_size));
  return {};
}

// Written so that NaN fails every comparison and is refused.
Expected<void> check(const TokenRules& rules) {
  if (!(rules.presence_penalty >= -2 && rules.presence_penalty <= 2))
    return out_of_range("presence_penalty", rules.presence_penalty, "a number in -2..2");
  if (!(rules.frequency_penalty >= -2 && rules.frequency_penalty <= 2))
    return out_of_range("frequency_penalty", rules.frequency_penalty, "a number in -2..2");
  if (!(rules.repetition_penalty > 0 && std::isfinite(rules.repetition_penalty)))
    return out_of_range("repetition_penalty", rules.repetition_penalty, "a number above 0");
  if (rules.logit_bias.size() > kMostBiases)
    return too_many("logit_bias", rules.logit_bias.size(), kMostBiases);
  for (const TokenBias& each : rules.logit_bias)
    if (!(each.bias >= -100 && each.bias <= 100))
      return out_of_range("logit_bias of token " + std::to_string(each.token), each.bias,
                          "a number in -100..100");
  if (rules.allowed_token_ids.size() > kMostAllowedTokens)
    return too_many("allowed_token_ids", rules.allowed_token_ids.size(), kMostAllowedTokens);
  if (rules.bad_words.size() > kMostBadWords)
    return too_many("bad_words", rules.bad_words.size(), kMostBadWords);
  for (const std::string& word : rules.bad_words)
    if (word.empty() || word.size() > kBadWordBytes)
      return bad("bad_words", " has a text of " + std::to_string(word.size()) + " bytes; use 1.." +
                                  std::to_string(kBadWordBytes));
  return {};
}

}  // namespace kvhive
