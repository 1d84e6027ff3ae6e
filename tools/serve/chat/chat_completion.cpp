#include "tools/serve/chat/chat_completion.hpp"

#include <algorithm>
#include <random>
#include <utility>

#include "models/text/detokenizer.hpp"

namespace kvhive {
namespace {

std::optional<TokenId> token_of(const Tokenizer& tokenizer, std::string_view text) {
  if (text.empty()) return std::nullopt;
  const auto tokens = tokenizer.encode(text, AddSpecial::no);
  if (!tokens || tokens->size() != 1 || !tokenizer.is_special(tokens->front())) return std::nullopt;
  return tokens->front();
}

/// Mistral's templates take ids of nine letters and digits only.
std::string call_id(ToolFormat format) {
  static constexpr std::string_view kLetters =
      "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
  thread_local std::random_device device;
  std::uniform_int_distribution<std::size_t> any(0, kLetters.size() - 1);
  std::string id = format == ToolFormat::mistral ? "" : "call_";
  for (const std::size_t size = id.size() + (format == ToolFormat::mistral ? 9 : 24);
       id.size() < size;)
    id += kLetters[any(device)];
  return id;
}

}  // namespace

ChatCompletion::ChatCompletion(AnswerContext context, ChatRequest request, ToolFormat format)
    : Generation(std::move(context), static_cast<const AnswerRequest&>(request)),
      format_(request.reads_tool_calls ? format : ToolFormat::none),
      one_call_only_(request.one_call_only),
      marker_(token_of(model().tokenizer, marker_of(format_))),
      turns_(choices(), Turn(format_)) {}

ChatCompletion::Json ChatCompletion::write(std::size_t index, const std::string& text,
                                           const std::vector<OutputToken>& tokens) {
  const ToolCallReader::Found found = read(index, text, tokens);
  Json finish = finish_reason_of(index);
  if (finish == "stop" && turns_[index].calls + found.calls.size() != 0) finish = "tool_calls";
  const bool is_news = is_first(index) || !found.text.empty() || !found.calls.empty() ||
                       !finish.is_null() || request().logprobs || request().return_token_ids;
  if (!is_news) return {};
  Json json = {{"index", index}};
  json[request().stream ? "delta" : "message"] = message_of(index, found);
  json["logprobs"] = request().logprobs ? logprobs_of(tokens) : Json();
  json["finish_reason"] = std::move(finish);
  json["stop_reason"] = stop_reason_of(index);
  if (!request().return_token_ids) return json;
  json["token_ids"] = ids_of(tokens);
  if (is_first(index)) json["prompt_token_ids"] = request().prompts.front().tokens;
  return json;
}

void ChatCompletion::complete(Json& answer) const {
  answer["prompt_logprobs"] = prompt_logprobs_of(0);
}

ToolCallReader::Found ChatCompletion::read(std::size_t index, const std::string& text,
                                           const std::vector<OutputToken>& tokens) {
  Turn& turn = turns_[index];
  ToolCallReader::Found found = turn.reader.push(with_marker(turn, text, tokens));
  if (!finish_reason_of(index).is_null()) {
    ToolCallReader::Found rest = turn.reader.finish();
    found.text += rest.text;
    found.calls.insert(found.calls.end(), std::make_move_iterator(rest.calls.begin()),
                       std::make_move_iterator(rest.calls.end()));
  }
  const std::size_t room = one_call_only_ ? 1 - std::min<std::size_t>(turn.calls, 1) : SIZE_MAX;
  if (found.calls.size() > room) found.calls.resize(room);
  return found;
}

/// An answer's text has no special tokens. The one that begins calls is put back where it was.
std::string ChatCompletion::with_marker(Turn& turn, const std::string& text,
                                        const std::vector<OutputToken>& tokens) const {
  if (!marker_) return text;
  std::string marked;
  std::size_t taken = 0;
  for (const OutputToken& token : tokens) {
    if (token.token == *marker_) {
      const std::size_t before = decode(model().tokenizer, turn.tokens).size();
      const std::size_t place = std::clamp(before, turn.bytes + taken, turn.bytes + text.size());
      marked += text.substr(taken, place - turn.bytes - taken);
      marked += marker_of(format_);
      taken = place - turn.bytes;
    }
    turn.tokens.push_back(token.token);
  }
  turn.bytes += text.size();
  return marked + text.substr(taken);
}

ChatCompletion::Json ChatCompletion::message_of(std::size_t index,
                                                const ToolCallReader::Found& found) {
  Json message = Json::object();
  if (is_first(index)) message["role"] = "assistant";
  Json calls = Json::array();
  for (const ToolCall& call : found.calls) calls.push_back(call_json(turns_[index], call));
  if (!request().stream || is_first(index) || !found.text.empty())
    message["content"] = found.text.empty() && !calls.empty() ? Json() : Json(found.text);
  if (!calls.empty()) message["tool_calls"] = std::move(calls);
  return message;
}

ChatCompletion::Json ChatCompletion::call_json(Turn& turn, const ToolCall& call) const {
  Json json = Json::object();
  if (request().stream) json["index"] = turn.calls;
  ++turn.calls;
  json["id"] = call_id(format_);
  json["type"] = "function";
  json["function"] = {{"name", call.name}, {"arguments", call.arguments}};
  return json;
}

ChatCompletion::Json ChatCompletion::logprobs_of(const std::vector<OutputToken>& tokens) const {
  Json content = Json::array();
  for (const OutputToken& token : tokens) {
    Json entry = entry_of(token.token, token.logprob);
    entry["top_logprobs"] = Json::array();
    for (const TokenLogprob& other : token.top)
      entry["top_logprobs"].push_back(entry_of(other.token, other.logprob));
    content.push_back(std::move(entry));
  }
  return {{"content", std::move(content)}};
}

/// The bytes let a client join tokens that are parts of a character.
ChatCompletion::Json ChatCompletion::entry_of(TokenId token, float logprob) const {
  Json bytes = Json::array();
  for (const char byte : model().tokenizer.token_bytes(token))
    bytes.push_back(static_cast<unsigned char>(byte));
  return {{"token", token_text(token)}, {"logprob", told(logprob)}, {"bytes", std::move(bytes)}};
}

}  // namespace kvhive
