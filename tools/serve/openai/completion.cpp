#include "tools/serve/openai/completion.hpp"

#include <utility>

#include "models/text/detokenizer.hpp"

namespace kvhive {

Completion::Completion(AnswerContext context, CompletionRequest request)
    : Generation(std::move(context), static_cast<const AnswerRequest&>(request)),
      echo_(request.echo),
      offsets_(choices()) {}

Completion::Json Completion::write(std::size_t index, const std::string& text,
                                   const std::vector<OutputToken>& tokens) {
  const AnswerRequest::Prompt& prompt = request().prompts[choice(index).prompt];
  std::string echoed;
  if (echo_ && is_first(index))
    echoed = prompt.tokens.empty() ? prompt.text : decode(model().tokenizer, prompt.tokens);
  if (is_first(index)) offsets_[index] = echoed.size();
  Json json = {{"index", index}, {"text", echoed + text}};
  json["logprobs"] = request().logprobs ? logprobs_of(index, tokens) : Json();
  json["finish_reason"] = finish_reason_of(index);
  json["stop_reason"] = stop_reason_of(index);
  if (!request().return_token_ids) return json;
  json["token_ids"] = ids_of(tokens);
  if (is_first(index))
    json["prompt_token_ids"] = prompt.tokens.empty() ? prompt.told : prompt.tokens;
  return json;
}

Completion::Json Completion::logprobs_of(std::size_t index,
                                         const std::vector<OutputToken>& tokens) {
  Json logprobs = {{"text_offset", Json::array()},
                   {"token_logprobs", Json::array()},
                   {"tokens", Json::array()},
                   {"top_logprobs", Json::array()}};
  for (const OutputToken& token : tokens) {
    const std::string text = token_text(token.token);
    Json top = Json::object();
    for (const TokenLogprob& entry : token.top) top[token_text(entry.token)] = entry.logprob;
    top[text] = token.logprob;  // also if it is not among the likeliest
    logprobs["text_offset"].push_back(offsets_[index]);
    logprobs["token_logprobs"].push_back(token.logprob);
    logprobs["tokens"].push_back(text);
    logprobs["top_logprobs"].push_back(std::move(top));
    offsets_[index] += text.size();
  }
  return logprobs;
}

}  // namespace kvhive
