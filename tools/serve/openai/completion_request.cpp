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

const std::string kEmbeds = "prompt_embeds";

/// An empty list counts as absent, as in vLLM.
bool has_rows(Fields& fields) {
  return fields.has(kEmbeds) && !(fields.at(kEmbeds).is_array() && fields.at(kEmbeds).empty());
}

/// One tensor, or a list of them.
void read_rows(Fields& fields, const ServedModel& model, std::vector<Prompt>& prompts) {
  const Json& value = fields.at(kEmbeds);
  const std::size_t count = value.is_array() ? value.size() : 1;
  if (count > kMostAnswers)
    return fields.fail(kEmbeds, "is a list of " + std::to_string(count) + "; give at most " +
                                    std::to_string(kMostAnswers) + " prompts");
  for (std::size_t i = 0; i < count; ++i) {
    const Json& one = value.is_array() ? value[i] : value;
    const std::string which = value.is_array() ? "[" + std::to_string(i) + "] " : "";
    if (!one.is_string())
      return fields.fail(
          kEmbeds, which + "is no text; use torch.save()'s bytes in base64, or a list of such");
    auto rows = read_prompt_rows(one.get_ref<const std::string&>(),
                                 {model.max_model_len, model.hidden_size});
    if (!rows) return fields.fail(kEmbeds, which + rows.error().text);
    Prompt& prompt = prompts.emplace_back();
    prompt.rows = std::make_shared<const PromptRows>(std::move(*rows));
  }
}

/// The fields that ask for what only tokens have.
void refuse_what_takes_tokens(Fields& fields, const CompletionRequest& request) {
  const std::pair<const char*, bool> asked[] = {
      {"echo", request.echo},
      {"prompt_logprobs", request.prompt_logprobs.has_value()},
      {"use_beam_search", request.beams.has_value()}};
  for (const auto& [name, is_asked_for] : asked)
    if (is_asked_for)
      fields.fail(name,
                  "takes the prompt's tokens, and prompt_embeds has none; leave one of them "
                  "out");
}

void read_embedded_prompts(Fields& fields, const ServedModel& model, PromptEmbeds embeds,
                           CompletionRequest& request) {
  static const std::string kPrompt = "prompt";
  if (embeds == PromptEmbeds::refused)
    return fields.fail(kEmbeds,
                       "is not taken here; ask the operator (kvhive serve "
                       "--enable-prompt-embeds), or give \"prompt\"");
  if (fields.has(kPrompt) && fields.at(kPrompt) != "")
    return fields.fail(kEmbeds, "and prompt are both given; leave one of them out");
  refuse_what_takes_tokens(fields, request);
  request.prompt_field = kEmbeds;
  if (!fields.error()) read_rows(fields, model, request.prompts);
}

}  // namespace

tl::expected<CompletionRequest, ApiError> parse_completion(const Json& body,
                                                           const ServedModel& model,
                                                           PromptEmbeds embeds) {
  Fields fields(body);
  CompletionRequest request;
  read_answer_fields(fields, model, request);
  request.echo = fields.boolean("echo", false);
  if (has_rows(fields))
    read_embedded_prompts(fields, model, embeds, request);
  else
    read_prompts(fields, request.prompts);
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
  refuse_what_is_missing(fields, {{"suffix", ""}, {"add_special_tokens", true}});
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
