#include "tools/serve/openai/completion_request.hpp"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

namespace kvhive {
namespace {

using Json = nlohmann::json;
using Prompt = AnswerRequest::Prompt;

std::optional<Prompt> prompt_of(const Json& value) {
  if (value.is_string()) return Prompt{value.get<std::string>(), {}};
  if (auto tokens = token_list(value)) return Prompt{{}, std::move(*tokens)};
  return std::nullopt;
}

bool is_empty(const Prompt& prompt) { return prompt.text.empty() && prompt.tokens.empty(); }

/// A text, a list of texts, a list of token ids, or a list of such lists.
void read_prompts(Fields& fields, std::vector<Prompt>& prompts) {
  static const std::string kName = "prompt";
  if (!fields.has(kName)) return fields.fail(kName, "is missing; give a text or token ids");
  const Json& value = fields.at(kName);
  const bool is_list = value.is_array() && !value.empty() && !value.front().is_number();
  if (is_list && value.size() > kMostAnswers)
    return fields.fail(kName, "is a list of " + std::to_string(value.size()) + "; give at most " +
                                  std::to_string(kMostAnswers) + " prompts");
  for (const Json& one : is_list ? value : Json::array({value})) {
    auto prompt = prompt_of(one);
    if (!prompt)
      return fields.fail(kName, "is " + fields.shown(kName) +
                                    "; use a text, a list of token ids, or a list of such");
    if (is_empty(*prompt)) return fields.fail(kName, "is empty; give a text or token ids");
    prompts.push_back(std::move(*prompt));
  }
}

}  // namespace

tl::expected<CompletionRequest, ApiError> parse_completion(const Json& body,
                                                           const ServedModel& model) {
  Fields fields(body);
  CompletionRequest request;
  read_answer_fields(fields, model, request);
  read_prompts(fields, request.prompts);
  request.echo = fields.boolean("echo", false);
  request.generate.max_tokens =
      read_max_tokens(fields, "max_tokens", 16, model, request.echo ? 0 : 1);
  request.repeats_only = request.generate.max_tokens == 0;
  // An engine generates at least one, as vLLM's does; it is not told.
  if (request.repeats_only) request.generate.max_tokens = 1;
  if (fields.has("logprobs")) {
    request.logprobs = static_cast<std::uint32_t>(fields.integer("logprobs", 0, 0, 20));
    request.generate.logprobs = *request.logprobs;
    if (request.echo)
      request.generate.prompt_logprobs =
          std::max(*request.logprobs, request.generate.prompt_logprobs.value_or(0));
  }
  refuse_what_is_missing(
      fields, {{"prompt_embeds", nullptr}, {"suffix", ""}, {"add_special_tokens", true}});
  if (request.beams && (request.repeats_only || request.generate.prompt_logprobs))
    fields.fail("echo",
                "with \"max_tokens\": 0 or logprobs asks for the prompt's tokens to be scored, "
                "which a beam search does not; leave one of them out");
  if (request.prompts.size() * request.best_of > kMostAnswers)
    fields.fail(request.best_of == request.n ? "n" : "best_of",
                "is " + std::to_string(request.best_of) + ", which for " +
                    std::to_string(request.prompts.size()) + " prompts makes more than " +
                    std::to_string(kMostAnswers) + " answers; ask for fewer");
  if (fields.error()) return tl::unexpected(*fields.error());
  request.unknown_fields = fields.unknown();
  return request;
}

}  // namespace kvhive
