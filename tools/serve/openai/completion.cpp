#include "tools/serve/openai/completion.hpp"

#include <algorithm>
#include <span>
#include <utility>

#include "models/text/detokenizer.hpp"

namespace kvhive {

Completion::Completion(AnswerContext context, CompletionRequest request)
    : Generation(std::move(context), static_cast<const AnswerRequest&>(request)),
      echo_(request.echo),
      prompt_field_(request.prompt_field),
      places_(choices(), {0, Detokenizer(model().tokenizer)}) {}

Completion::Json Completion::write(std::size_t index, const std::string& text,
                                   const std::vector<OutputToken>& tokens) {
  const AnswerRequest::Prompt& prompt = request().prompts[choice(index).prompt];
  std::string echoed;
  if (echo_ && is_first(index))
    echoed = prompt.tokens.empty() ? prompt.text : decode(model().tokenizer, prompt.tokens);
  if (is_first(index)) places_[index].offset = characters(echoed);
  Json json = {{"index", index}, {"text", echoed + text}};
  json["logprobs"] = request().logprobs ? logprobs_of(index, tokens) : Json();
  json["finish_reason"] = finish_reason_of(index);
  json["stop_reason"] = stop_reason_of(index);
  if (!request().stream) json["prompt_logprobs"] = prompt_logprobs_of(index);
  if (!request().return_token_ids) return json;
  json["token_ids"] = ids_of(tokens);
  if (is_first(index)) json["prompt_token_ids"] = prompt_ids_of(prompt);
  return json;
}

/// Null of a prompt that is given as embeddings.
Completion::Json Completion::prompt_ids_of(const AnswerRequest::Prompt& prompt) {
  if (prompt.rows) return {};
  return prompt.tokens.empty() ? prompt.told : prompt.tokens;
}

Completion::Json Completion::logprobs_of(std::size_t index,
                                         const std::vector<OutputToken>& tokens) {
  Json logprobs = {{"text_offset", Json::array()},
                   {"token_logprobs", Json::array()},
                   {"tokens", Json::array()},
                   {"top_logprobs", Json::array()}};
  if (echo_ && is_first(index)) add_prompt(index, logprobs);
  auto& [offset, text] = places_[index];
  for (const OutputToken& token : tokens) {
    logprobs["text_offset"].push_back(offset);
    logprobs["token_logprobs"].push_back(told(token.logprob));
    logprobs["tokens"].push_back(token_text(token.token));
    logprobs["top_logprobs"].push_back(top_of(token, token.top.size()));
    offset += characters(text.push(token.token));
  }
  return logprobs;
}

/// The likeliest tokens, and the token itself if it is not among them.
template <class Token>
Completion::Json Completion::top_of(const Token& token, std::size_t most) const {
  Json top = Json::object();
  for (const TokenLogprob& entry : std::span(token.top).first(std::min(most, token.top.size())))
    top[token_text(entry.token)] = told(entry.logprob);
  top[token_text(token.token)] = told(token.logprob);
  return top;
}

/// Special tokens have no text.
void Completion::add_prompt(std::size_t index, Json& logprobs) const {
  Detokenizer text(model().tokenizer);
  std::size_t offset = 0;
  for (const PromptLogprob& token : choice(index).scored_prompt) {
    const bool is_scored = token.rank != 0;
    logprobs["text_offset"].push_back(offset);
    logprobs["token_logprobs"].push_back(is_scored ? Json(told(token.logprob)) : Json());
    logprobs["tokens"].push_back(token_text(token.token));
    logprobs["top_logprobs"].push_back(is_scored ? top_of(token, *request().logprobs) : Json());
    offset += characters(text.push(token.token));
  }
}

}  // namespace kvhive
