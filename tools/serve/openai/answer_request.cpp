#include "tools/serve/openai/answer_request.hpp"

#include <algorithm>
#include <limits>

#include "ipc/channel/channel_layout.hpp"

namespace kvhive {
namespace {

using Json = nlohmann::json;

constexpr std::int64_t kMostPerPrompt = 128;

void read_stop(Fields& fields, GenerateRequest& generate) {
  generate.stop = fields.texts("stop", kMostStopStrings);
  for (const std::string& stop : generate.stop)
    if (stop.empty() || stop.size() > kStopBytes)
      fields.fail("stop", "holds a text of " + std::to_string(stop.size()) + " bytes; use 1.." +
                              std::to_string(kStopBytes));
  generate.stop_token_ids = fields.tokens("stop_token_ids", kMostStopTokens);
  generate.include_stop = fields.boolean("include_stop_str_in_output", false);
}

void read_sampling(Fields& fields, const ServedModel& model, GenerateRequest& generate) {
  constexpr auto kMostInt = std::numeric_limits<std::int32_t>::max();
  const SamplingDefaults& usual = model.sampling;
  generate.temperature =
      static_cast<float>(fields.number("temperature", usual.temperature, 0, 1e6));
  generate.top_p = static_cast<float>(fields.number_above("top_p", usual.top_p, 0, 1));
  generate.top_k = static_cast<std::int32_t>(fields.integer("top_k", usual.top_k, -1, kMostInt));
  generate.min_p = static_cast<float>(fields.number("min_p", usual.min_p, 0, 1));
  if (fields.has("seed"))
    generate.seed = static_cast<std::uint64_t>(
        fields.integer("seed", 0, std::numeric_limits<std::int64_t>::min(),
                       std::numeric_limits<std::int64_t>::max()));
  generate.ignore_eos = fields.boolean("ignore_eos", false);
  generate.priority = static_cast<std::int32_t>(
      fields.integer("priority", 0, std::numeric_limits<std::int32_t>::min(), kMostInt));
}

bool has_token(const ServedModel& model, TokenId token) {
  return token < model.tokenizer.vocab_size();
}

void refuse_token(Fields& fields, const char* name, TokenId token, const ServedModel& model) {
  fields.fail(name, "has the token " + std::to_string(token) + "; the model has " +
                        std::to_string(model.tokenizer.vocab_size()));
}

void read_allowed_tokens(Fields& fields, const ServedModel& model, GenerateRequest& generate) {
  static const std::string kName = "allowed_token_ids";
  if (!fields.has(kName)) return;
  std::vector<TokenId>& allowed = generate.allowed_token_ids;
  allowed = fields.tokens(kName, kMostAllowedTokens);
  if (allowed.empty()) return fields.fail(kName, "allows no token; name one, or leave it out");
  std::ranges::sort(allowed);
  allowed.erase(std::unique(allowed.begin(), allowed.end()), allowed.end());
  if (!has_token(model, allowed.back()))
    refuse_token(fields, "allowed_token_ids", allowed.back(), model);
}

/// Biases beyond their range count as its end, as in vLLM.
void read_token_rules(Fields& fields, const ServedModel& model, GenerateRequest& generate) {
  generate.presence_penalty = static_cast<float>(fields.number("presence_penalty", 0, -2, 2));
  generate.frequency_penalty = static_cast<float>(fields.number("frequency_penalty", 0, -2, 2));
  generate.repetition_penalty = static_cast<float>(
      fields.number_above("repetition_penalty", model.sampling.repetition_penalty, 0, 1e6));
  generate.min_tokens = static_cast<std::uint32_t>(
      fields.integer("min_tokens", 0, 0, std::numeric_limits<std::int32_t>::max()));
  generate.logit_bias = fields.by_token("logit_bias", -100, 100, kMostBiases);
  for (const auto& [token, bias] : generate.logit_bias)
    if (!has_token(model, token)) refuse_token(fields, "logit_bias", token, model);
  read_allowed_tokens(fields, model, generate);
  generate.bad_words = fields.texts("bad_words", kMostBadWords);
  for (const std::string& word : generate.bad_words)
    if (word.empty() || word.size() > kBadWordBytes)
      fields.fail("bad_words", "holds a text of " + std::to_string(word.size()) +
                                   " bytes; use 1.." + std::to_string(kBadWordBytes));
}

/// vLLM's limits: its salts become parts of other stores' keys. Bytes are counted, not characters.
void read_salt(Fields& fields, GenerateRequest& generate) {
  static const std::string kName = "cache_salt";
  if (!fields.has(kName)) return;
  generate.cache_salt = fields.text(kName, "");
  if (generate.cache_salt.empty() || generate.cache_salt.size() > kSaltBytes)
    return fields.fail(kName, "has " + std::to_string(generate.cache_salt.size()) +
                                  " bytes; use a text of 1.." + std::to_string(kSaltBytes));
  constexpr std::string_view kRefused{"@/\\\0", 4};
  if (generate.cache_salt.find_first_of(kRefused) != std::string::npos)
    fields.fail(kName, "holds one of the characters @ / \\ NUL; use others");
}

void read_stream(Fields& fields, AnswerRequest& request) {
  request.stream = fields.boolean("stream", false);
  if (!fields.has("stream_options")) return;
  if (!request.stream)
    return fields.fail("stream_options",
                       "is given, and \"stream\" is not true; set that, or leave it out");
  if (!fields.at("stream_options").is_object())
    return fields.fail("stream_options", "is " + fields.shown("stream_options") +
                                             "; use an object, as {\"include_usage\": true}");
  Fields options(fields.at("stream_options"));
  request.include_usage = options.boolean("include_usage", false);
  request.continuous_usage = options.boolean("continuous_usage_stats", false);
  if (options.error())
    fields.fail("stream_options." + options.error()->param,
                "is " + options.shown(options.error()->param) + "; use true or false");
  fields.add_unknown("stream_options", options.unknown());
}

void read_prompt_logprobs(Fields& fields, AnswerRequest& request) {
  static const std::string kName = "prompt_logprobs";
  if (!fields.has(kName)) return;
  request.generate.prompt_logprobs = static_cast<std::uint32_t>(fields.integer(kName, 0, 0, 20));
  request.prompt_logprobs = request.generate.prompt_logprobs;
  if (request.stream) fields.fail(kName, "is not told in a stream; leave \"stream\" out");
}

/// As in vLLM's V0: of so many answers the likeliest are told.
void read_best_of(Fields& fields, AnswerRequest& request) {
  request.best_of =
      static_cast<std::uint32_t>(fields.integer("best_of", request.n, request.n, kMostPerPrompt));
  if (request.best_of > request.n && request.stream)
    fields.fail("best_of", "is " + std::to_string(request.best_of) +
                               ", and which answers are the best is known at the end; leave "
                               "\"stream\" out");
}

/// As in vLLM, n is the number of beams, too. What vLLM leaves unheeded beside beams is refused.
void read_beams(Fields& fields, const ServedModel& model, AnswerRequest& request) {
  const double penalty = fields.number("length_penalty", 1, -100, 100);
  if (!fields.boolean("use_beam_search", false)) {
    if (penalty != 1)
      fields.fail("length_penalty", "is " + fields.shown("length_penalty") +
                                        ", which is for beams; leave it out, or give "
                                        "\"use_beam_search\"");
    return;
  }
  request.beams = {request.n, 1, penalty, model.end_tokens, request.generate.ignore_eos};
  if (2 * request.n > kMostLogprobs)
    fields.fail("n", "is " + std::to_string(request.n) + "; a beam search has at most " +
                         std::to_string(kMostLogprobs / 2) + " beams");
  GenerateRequest& asked = request.generate;
  if (!fields.has("repetition_penalty")) asked.repetition_penalty = 1;  // the model's own
  const std::pair<const char*, bool> others[] = {
      {"best_of", request.best_of != request.n},
      {"stream", request.stream},
      {"stop", !asked.stop.empty()},
      {"stop_token_ids", !asked.stop_token_ids.empty()},
      {"presence_penalty", asked.presence_penalty != 0},
      {"frequency_penalty", asked.frequency_penalty != 0},
      {"repetition_penalty", asked.repetition_penalty != 1},
      {"min_tokens", asked.min_tokens != 0},
      {"logit_bias", !asked.logit_bias.empty()},
      {"allowed_token_ids", !asked.allowed_token_ids.empty()},
      {"bad_words", !asked.bad_words.empty()},
      {"prompt_logprobs", asked.prompt_logprobs.has_value()}};
  for (const auto& [name, is_asked_for] : others)
    if (is_asked_for)
      fields.fail(name, "is not heeded by a beam search; leave it or \"use_beam_search\" out");
}

}  // namespace

std::optional<ApiError> AnswerRequest::refusal(const ServedModel& served) const {
  if (generate.min_tokens > generate.max_tokens)
    return ApiError{400,
                    "min_tokens is " + std::to_string(generate.min_tokens) +
                        ", more than the answer may have: " + std::to_string(generate.max_tokens),
                    "min_tokens"};
  if (prompts.size() * best_of * generate.allowed_token_ids.size() > kMostAllowedInAll)
    return ApiError{400,
                    "the lists of all answers together would have more than " +
                        std::to_string(kMostAllowedInAll) +
                        " allowed tokens; ask for fewer answers or prompts at a time",
                    "allowed_token_ids"};
  std::size_t scores = 0;
  for (const Prompt& each : prompts) {
    const std::vector<TokenId>& ids = each.tokens.empty() ? each.told : each.tokens;
    if ((generate.prompt_logprobs || beams) && ids.empty())
      return ApiError{400, "this text cannot be tokenised; give token ids"};
    if (ids.size() >= served.max_model_len)
      return ApiError{400, "the prompt has " + std::to_string(ids.size()) +
                               " tokens; a request may have " +
                               std::to_string(served.max_model_len) +
                               ", at least one of output included; shorten it"};
    if (generate.prompt_logprobs) scores += best_of * ids.size() * (1 + *generate.prompt_logprobs);
  }
  if (scores <= kMostScores) return std::nullopt;
  return ApiError{400,
                  "the answer would have " + std::to_string(scores) +
                      " log-probabilities of prompts; at most " + std::to_string(kMostScores) +
                      " fit: ask for fewer alternatives, answers or prompts at a time",
                  prompt_logprobs ? "prompt_logprobs" : "logprobs"};
}

GenerateRequest AnswerRequest::for_answer(std::size_t prompt, std::uint32_t i) const {
  GenerateRequest one = generate;
  one.prompt = prompts[prompt].text;
  one.prompt_tokens = prompts[prompt].tokens;
  if ((one.prompt_logprobs || beams) && one.prompt_tokens.empty())
    one.prompt_tokens = prompts[prompt].told;
  if (const auto& rows = prompts[prompt].rows) {
    one.prompt_embeds = rows->values;
    one.embedding_width = rows->width;
  }
  if (one.seed) *one.seed += i;
  return one;
}

std::vector<std::string> names_of(const ServedModel& model) {
  std::vector<std::string> names = {model.name};
  names.insert(names.end(), model.adapters.begin(), model.adapters.end());
  return names;
}

namespace {

std::string does_not_exist(const std::string& asked, const std::vector<std::string>& known) {
  std::string names;
  for (const std::string& name : known) names += (names.empty() ? "'" : ", '") + name + "'";
  return "'" + shown_text(asked) + "' does not exist; this service has " + names;
}

}  // namespace

ApiError no_such_model(const std::string& asked, const std::vector<std::string>& known) {
  return {404, "model " + does_not_exist(asked, known), "model"};
}

std::string read_model(Fields& fields, const ServedModel& model) {
  const std::string asked = fields.text("model", model.name);
  const std::vector<std::string> known = names_of(model);
  if (std::ranges::find(known, asked) == known.end())
    fields.fail("model", does_not_exist(asked, known), 404);
  return asked;
}

void read_answer_fields(Fields& fields, const ServedModel& model, AnswerRequest& request) {
  request.model = read_model(fields, model);
  if (request.model != model.name) request.generate.adapter = request.model;
  request.n = static_cast<std::uint32_t>(fields.integer("n", 1, 1, kMostPerPrompt));
  read_stream(fields, request);
  read_stop(fields, request.generate);
  read_sampling(fields, model, request.generate);
  read_token_rules(fields, model, request.generate);
  read_salt(fields, request.generate);
  read_prompt_logprobs(fields, request);
  read_best_of(fields, request);
  read_beams(fields, model, request);
  request.return_token_ids = fields.boolean("return_token_ids", false);
  request.token_ids_as_text = fields.boolean("return_tokens_as_token_ids", false);
  static const std::vector<std::pair<std::string, Json>> kMissing = {
      {"response_format", {{"type", "text"}}},
      {"skip_special_tokens", true},
      {"structured_outputs", nullptr},
      {"truncate_prompt_tokens", nullptr}};
  refuse_what_is_missing(fields, kMissing);
  // OpenAI's, for whoever watches over users and bills; vLLM's, of texts that are all alike here.
  for (const char* name : {"user", "store", "metadata", "service_tier", "safety_identifier",
                           "prompt_cache_key", "spaces_between_special_tokens"})
    fields.know(name);
}

std::uint32_t read_max_tokens(Fields& fields, const std::string& name, std::uint32_t fallback,
                              const ServedModel& model, std::uint32_t least) {
  const auto most = std::max<std::uint32_t>(model.max_model_len, 1);
  return static_cast<std::uint32_t>(
      std::min<std::int64_t>(fields.integer(name, fallback, least, 10'000'000), most));
}

void refuse_what_is_missing(Fields& fields,
                            const std::vector<std::pair<std::string, Json>>& missing) {
  for (const auto& [name, harmless] : missing) fields.refuse_unless(name, harmless);
}

}  // namespace kvhive
