#include "ipc/channel/request_check.hpp"

#include <algorithm>
#include <string>

#include "ipc/channel/rule_lists.hpp"

namespace kvhive {
namespace {

tl::unexpected<Error> bad_request(const std::string& text) {
  return failure(Errc::bad_argument, text);
}

bool contains(std::size_t begin, std::size_t end, const ChannelRange& range,
              std::size_t alignment) {
  return range.offset >= begin && range.offset <= end && range.bytes <= end - range.offset &&
         range.offset % alignment == 0;
}

/// \param body  of a prompt given as embeddings, with a width
std::size_t row_bytes(const RequestBody& body) { return body.embedding_width * sizeof(float); }

Expected<void> check_length(const RequestBody& body, const PromptLimits& limits) {
  if (body.prompt_kind == PromptKind::text) {
    if (body.prompt.bytes <= limits.text_bytes) return {};
    return failure(Errc::never_fits,
                   "the prompt has " + std::to_string(body.prompt.bytes) +
                       " bytes, which is more than " + std::to_string(limits.text_bytes) +
                       ", the most that the model's longest sequence can stand for; " +
                       limits.remedy);
  }
  if (body.prompt_kind == PromptKind::embeddings && body.embedding_width != limits.embedding_width)
    return bad_request("prompt_embeds has rows of " + std::to_string(body.embedding_width) +
                       " values; the model's hidden_size is " +
                       std::to_string(limits.embedding_width));
  const std::size_t tokens = prompt_tokens(body);
  if (tokens < limits.tokens) return {};
  return failure(Errc::never_fits, "the prompt has " + std::to_string(tokens) +
                                       " tokens; a request may have " +
                                       std::to_string(limits.tokens) +
                                       ", at least one of output included; " + limits.remedy);
}

Expected<void> check_prompt(const RequestBody& body, const ChannelRoom& room) {
  std::size_t unit = 1;
  switch (body.prompt_kind) {
    case PromptKind::text: break;
    case PromptKind::tokens: unit = sizeof(TokenId); break;
    case PromptKind::embeddings:
      if (body.embedding_width == 0) return bad_request("prompt_embeds has rows of no values");
      if (body.prompt_log.bytes != 0)
        return bad_request("prompt_logprobs of prompt_embeds: there are no tokens to be scored");
      unit = row_bytes(body);
      break;
    default:
      return bad_request("the request's prompt kind is " +
                         std::to_string(std::uint32_t(body.prompt_kind)) +
                         ", not text, tokens or embeddings");
  }
  const std::size_t alignment = std::min(unit, alignof(TokenId));
  if (!contains(prompts_offset(), room.requests, body.prompt, alignment) ||
      body.prompt.bytes % unit != 0)
    return bad_request("the request's prompt lies outside the channel");
  return {};
}

/// The tokens of a text are counted later (TakenRequest::most_scored()).
Expected<void> check_prompt_log(const RequestBody& body, const ChannelRoom& room) {
  if (body.prompt_log.bytes == 0) return {};
  if (body.prompt_logprobs > kMostLogprobs)
    return bad_request("prompt_logprobs is " + std::to_string(body.prompt_logprobs) + "; at most " +
                       std::to_string(kMostLogprobs));
  const std::size_t tokens =
      body.prompt_kind == PromptKind::tokens ? body.prompt.bytes / sizeof(TokenId) : 1;
  if (!contains(answers_offset(), room.answers, body.prompt_log, alignof(PromptRecord)) ||
      body.prompt_log.bytes / record_bytes(body.prompt_logprobs) < tokens)
    return bad_request(
        "the room for the prompt's log-probabilities lies outside the channel or is smaller than "
        "the prompt");
  return {};
}

Expected<void> check_body(const RequestBody& body, const ChannelRoom& room) {
  if (body.prompt.bytes == 0) return bad_request("the prompt is empty; give at least one token");
  if (auto valid = check_prompt(body, room); !valid) return valid;
  if (body.max_tokens == 0) return bad_request("max_tokens is 0; ask for at least 1");
  if (body.logprobs > kMostLogprobs)
    return bad_request("logprobs is " + std::to_string(body.logprobs) + "; at most " +
                       std::to_string(kMostLogprobs));
  if (!contains(answers_offset(), room.answers, body.log, alignof(LogRecord)) ||
      body.log.bytes / record_bytes(body.logprobs) < body.max_tokens)
    return bad_request(
        "the request's token log lies outside the channel or is smaller than max_tokens");
  if (auto valid = check_prompt_log(body, room); !valid) return valid;
  if (!contains(answers_offset(), room.answers, body.text, 1))
    return bad_request("the request's text buffer lies outside the channel");
  if (body.stop_count > kMostStopStrings || body.stop_token_count > kMostStopTokens)
    return bad_request("more stop strings or stop tokens than the channel can carry");
  for (std::uint32_t i = 0; i < body.stop_count; ++i)
    if (body.stop_bytes[i] == 0 || body.stop_bytes[i] > kStopBytes)
      return bad_request("stop string " + std::to_string(i) + " must have 1.." +
                         std::to_string(kStopBytes) + " bytes");
  if (body.salt_bytes > kSaltBytes)
    return bad_request("cache_salt has " + std::to_string(body.salt_bytes) + " bytes; at most " +
                       std::to_string(kSaltBytes));
  if (body.adapter_bytes > kAdapterBytes)
    return bad_request("adapter has " + std::to_string(body.adapter_bytes) +
                       " bytes; names have at most " + std::to_string(kAdapterBytes));
  const SamplingParams sampling{body.temperature, body.top_k, body.top_p, body.min_p, body.seed};
  if (auto valid = checked(sampling); !valid) return forward_error(valid);
  if (body.min_tokens > body.max_tokens)
    return bad_request("min_tokens is " + std::to_string(body.min_tokens) +
                       "; at most max_tokens, " + std::to_string(body.max_tokens));
  if (!may_take(body.rule_counts, body.rule_lists.bytes) ||
      (body.rule_lists.bytes != 0 &&
       !contains(prompts_offset(), room.requests, body.rule_lists, alignof(std::uint32_t))))
    return bad_request("the lists of the request's rules lie outside the channel or are damaged");
  return check(scalar_rules(body));
}

}  // namespace

std::size_t prompt_tokens(const RequestBody& body) {
  constexpr std::size_t kBytesPerToken = 4;
  switch (body.prompt_kind) {
    case PromptKind::tokens: return body.prompt.bytes / sizeof(TokenId);
    case PromptKind::embeddings: return body.prompt.bytes / row_bytes(body);
    case PromptKind::text: break;
  }
  return body.prompt.bytes / kBytesPerToken;
}

TokenRules scalar_rules(const RequestBody& body) {
  TokenRules rules;
  rules.presence_penalty = body.presence_penalty;
  rules.frequency_penalty = body.frequency_penalty;
  rules.repetition_penalty = body.repetition_penalty;
  rules.min_tokens = body.min_tokens;
  return rules;
}

Expected<void> check_request(const RequestBody& body, const PromptLimits& limits,
                             const ChannelRoom& room) {
  if (auto valid = check_body(body, room); !valid) return valid;
  return check_length(body, limits);
}

}  // namespace kvhive
