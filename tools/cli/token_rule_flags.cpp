#include "tools/cli/token_rule_flags.hpp"

#include <charconv>

#include "tools/cli/prompt.hpp"

namespace kvhive {
namespace {

Expected<std::map<TokenId, float>> parse_biases(const std::string& text) {
  std::map<TokenId, float> biases;
  const char* const end = text.data() + text.size();
  for (const char* at = text.data(); at <= end; ++at) {
    TokenId token = -1;
    float bias = 0;
    const auto name = std::from_chars(at, end, token);
    const bool is_named =
        name.ec == std::errc{} && token >= 0 && name.ptr != end && *name.ptr == '=';
    const auto value = is_named ? std::from_chars(name.ptr + 1, end, bias) : name;
    if (!is_named || value.ec != std::errc{} || (value.ptr != end && *value.ptr != ','))
      return failure(Errc::bad_argument,
                     "--logit-bias '" + text +
                         "' is not a list of tokens with biases; give ids and numbers in "
                         "-100..100, as in 12=-100,7=1.5");
    biases[token] = bias;
    at = value.ptr;
  }
  return biases;
}

}  // namespace

void TokenRuleFlags::add_to(CLI::App& app, GenerateRequest& request) {
  app.add_option("--presence-penalty", request.presence_penalty,
                 "-2..2: taken from the logits of tokens that the answer has");
  app.add_option("--frequency-penalty", request.frequency_penalty,
                 "-2..2: taken from them once for each time that the answer has them");
  app.add_option("--repetition-penalty", request.repetition_penalty,
                 "above 0: makes tokens that the prompt or the answer has so many times less "
                 "likely; 1 = not");
  app.add_option("--min-tokens", min_tokens_,
                 "so many tokens before an end-of-sequence token or a stop ends the answer");
  app.add_option("--logit-bias", logit_bias_, "added to the logits of these tokens, -100..100 each")
      ->type_name("ID=BIAS,...")
      ->default_str("");
  app.add_option("--allowed-token-ids", allowed_token_ids_, "only these tokens")
      ->type_name("ID,ID,...")
      ->default_str("");
  app.add_option("--bad-word", request.bad_words,
                 "do not generate this text; may be given several times")
      ->allow_extra_args(false)
      ->default_str("");
  app.add_flag("--include-stop", request.include_stop,
               "the --stop text that ends the answer stays in it");
}

Expected<void> TokenRuleFlags::read(GenerateRequest& request) const {
  if (min_tokens_ < 0 || min_tokens_ > request.max_tokens)
    return failure(Errc::bad_argument, "--min-tokens is " + std::to_string(min_tokens_) +
                                           "; use 0.." + std::to_string(request.max_tokens) +
                                           ", which is --max-tokens");
  request.min_tokens = static_cast<std::uint32_t>(min_tokens_);
  if (!logit_bias_.empty()) {
    auto biases = parse_biases(logit_bias_);
    if (!biases) return forward_error(biases);
    request.logit_bias = std::move(*biases);
  }
  if (allowed_token_ids_.empty()) return {};
  auto tokens = parse_token_ids("--allowed-token-ids", allowed_token_ids_);
  if (!tokens) return forward_error(tokens);
  request.allowed_token_ids = std::move(*tokens);
  return {};
}

}  // namespace kvhive
