#include "tools/serve/openai/generation.hpp"

#include <algorithm>
#include <boost/asio/post.hpp>
#include <span>
#include <utility>

#include "base/log.hpp"
#include "models/text/detokenizer.hpp"

namespace kvhive {
namespace {

std::string dumped(const nlohmann::ordered_json& json) {
  return json.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

/// So many tokens hold any stop text: each has a byte at least, or is special.
constexpr std::ptrdiff_t kTail = 128;

/// Prompts that are put into channels at a time, in bytes; a short one takes as long as some.
constexpr std::size_t kSubmittedAtATime = std::size_t{128} << 10, kLeastSubmitted = 8192;

/// Roughly what the JSON of a token and its alternatives takes.
template <class Token>
std::size_t scores_bytes(const std::vector<Token>& tokens) {
  std::size_t entries = 0;
  for (const Token& token : tokens) entries += 1 + token.top.size();
  return 80 * entries;
}

/// OpenAI's words; a request that was aborted is nobody's any more.
std::string_view finish_name(Finish reason) {
  return reason == Finish::length ? "length" : reason == Finish::stop ? "stop" : "abort";
}

nlohmann::ordered_json usage_json(std::uint64_t prompt, std::uint64_t generated,
                                  std::uint64_t cached) {
  return {{"prompt_tokens", prompt},
          {"completion_tokens", generated},
          {"total_tokens", prompt + generated},
          {"prompt_tokens_details", {{"cached_tokens", cached}}}};
}

Progress without_answer(Progress news) {
  news.tokens.clear();
  news.text.clear();
  news.text_bytes = 0;
  return news;
}

}  // namespace

std::vector<TokenId> ids_of(const std::vector<OutputToken>& tokens) {
  std::vector<TokenId> ids;
  for (const OutputToken& token : tokens) ids.push_back(token.token);
  return ids;
}

Generation::Generation(AnswerContext context, AnswerRequest request)
    : context_(std::move(context)), request_(std::move(request)), timer_(context_.hive.loop()) {
  for (std::size_t prompt = 0; prompt < request_.prompts.size(); ++prompt)
    for (std::uint32_t i = 0; i < request_.best_of; ++i) choices_.emplace_back(prompt);
}

void Generation::start() {
  if (auto refused = request_.refusal(model())) {
    if (refused->param.empty()) refused->param = prompt_field();
    end_span(refused->text);
    is_over_ = true;
    return context_.exchange->answer(to_answer(*refused));
  }
  context_.exchange->on_gone = [self = shared_from_this()] {
    self->end_span("the client has gone");
    self->cancel();
  };
  context_.exchange->on_end_of_service = [self = shared_from_this()] {
    self->fail({503, "the service is being stopped; ask again"});
  };
  if (request_.stream && context_.keep_alive.count() > 0) keep_alive();
  request_.beams ? start_beams() : submit_from(0);
}

/// Others have their turns between many.
void Generation::submit_from(std::size_t first) {
  std::size_t bytes = 0;
  for (std::size_t i = first; i < choices_.size() && !is_over_; ++i) {
    if (bytes >= kSubmittedAtATime)
      return boost::asio::post(context_.hive.loop(), [self = shared_from_this(), i] {
        self->attempt([&] { self->submit_from(i); });
      });
    GenerateRequest one =
        request_.for_answer(choices_[i].prompt, static_cast<std::uint32_t>(i) % request_.best_of);
    bytes += std::max(prompt_bytes(one), kLeastSubmitted);
    choices_[i].key = context_.hive.submit(
        std::move(one), context_.model->id,
        [self = shared_from_this(), i](const Progress& news) { self->hear(i, news); });
  }
}

void Generation::start_beams() {
  for (std::size_t i = 0; i < request_.prompts.size(); ++i) {
    GenerateRequest asked = request_.for_answer(i, 0);
    BeamSearch::Rules rules = *request_.beams;
    const auto room =
        static_cast<std::uint32_t>(model().max_model_len - asked.prompt_tokens.size());
    rules.max_tokens = std::min(asked.max_tokens, room);
    beams_.push_back(std::make_shared<BeamRun>(context_.hive, context_.model->id, std::move(asked),
                                               std::move(rules)));
    beams_.back()->start([self = shared_from_this(), i](const std::optional<ClientError>& error) {
      self->attempt([&] { self->on_beams(error); });
    });
  }
}

void Generation::on_beams(const std::optional<ClientError>& error) {
  if (error) return fail_of(*error);
  if (++ended_beams_ < beams_.size()) return;
  choices_.clear();
  for (std::size_t i = 0; i < beams_.size(); ++i) take_beams(i);
  finished_ = choices_.size();
  finish();
}

/// The token that has ended an answer is told where a stop text would be.
void Generation::take_beams(std::size_t prompt) {
  BeamRun& run = *beams_[prompt];
  for (Beam& beam : run.take_best()) {
    Choice& choice = choices_.emplace_back(prompt);
    std::vector<TokenId> ids;
    for (const Beam::Token& token : beam.tokens) ids.push_back(token->token);
    choice.text = decode(model().tokenizer, ids);
    if (beam.end && request_.generate.include_stop) beam.tokens.push_back(beam.end);
    for (const Beam::Token& token : beam.tokens) {
      choice.tokens.push_back(*token);
      auto& top = choice.tokens.back().top;
      top.resize(std::min<std::size_t>(top.size(), request_.logprobs.value_or(0)));
    }
    choice.prompt_tokens = run.prompt_tokens();
    choice.cached_tokens = run.cached_tokens();
    choice.generated = static_cast<std::uint32_t>(choice.tokens.size());
    choice.reason = beam.end ? Finish::stop : Finish::length;
    if (beam.end) choice.end = beam.end->token;
  }
}

/// A mistake of ours costs this request, and none of those that share its channel.
template <class Step>
void Generation::attempt(Step step) {
  try {
    step();
  } catch (const std::exception& error) {
    spdlog::error("{} could not be answered: {}", context_.id, error.what());
    if (!is_over_) fail({500, "the service could not give this answer; its log says why"});
  }
}

void Generation::hear(std::size_t index, const Progress& news) {
  if (is_making_) return held_back_.emplace_back(index, news), void();
  attempt(
      [&] { request_.repeats_only ? on_news(index, without_answer(news)) : on_news(index, news); });
}

/// A stream that says nothing for long is taken for dead by what stands between, and by some
/// clients. From the first time on, an engine's refusal comes as an event.
void Generation::keep_alive() {
  timer_.expires_at(last_sent_ + context_.keep_alive);
  timer_.async_wait([weak = weak_from_this()](boost::system::error_code error) {
    const auto self = weak.lock();
    if (error || !self || self->is_over_) return;
    const auto now = std::chrono::steady_clock::now();
    if (now - self->last_sent_ >= self->context_.keep_alive) {
      self->begin_stream();
      self->context_.exchange->keep_alive();
      self->last_sent_ = now;
    }
    self->keep_alive();
  });
}

void Generation::cancel() {
  is_over_ = true;
  timer_.cancel();
  for (const Choice& choice : choices_)
    if (choice.reason == Finish::none) context_.hive.cancel(choice.key);
  for (const auto& run : beams_) run->cancel();
}

void Generation::fail(const ApiError& error) {
  end_span(error.text);
  cancel();
  if (!is_streaming_) return context_.exchange->answer(to_answer(error));
  context_.exchange->send_event(to_json_text(error));
  context_.exchange->send_event("[DONE]");
  context_.exchange->end();
}

/// What an engine says. All other fields were checked before.
void Generation::fail_of(const ClientError& said) {
  ApiError error = api_error(said);
  if (error.status == 400) error.param = prompt_field();
  fail(error);
}

void Generation::on_news(std::size_t index, const Progress& news) {
  if (is_over_) return;
  Choice& choice = choices_[index];
  if (news.reason == Finish::error) {
    choice.reason = news.reason;
    return fail_of(news.error);
  }
  if (context_.span && !news.tokens.empty()) context_.span->first_token();
  choice.prompt_tokens = std::max(choice.prompt_tokens, news.prompt_tokens);
  choice.cached_tokens = std::max(choice.cached_tokens, news.cached_tokens);
  choice.generated += static_cast<std::uint32_t>(news.tokens.size());
  for (const OutputToken& token : news.tokens) choice.last_tokens.push_back(token.token);
  if (choice.last_tokens.size() > std::size_t{2 * kTail})
    choice.last_tokens.erase(choice.last_tokens.begin(), choice.last_tokens.end() - kTail);
  if (!news.prompt.empty()) choice.scored_prompt = news.prompt;
  const std::string& text = news.text;
  if (news.reason != Finish::none) {
    choice.reason = news.reason;
    ++finished_;
  }
  if (request_.stream) {
    // An engine has admitted it: it will not be refused any more.
    if (choice.prompt_tokens != 0) begin_stream();
    stream(index, text, news.tokens);
  } else {
    choice.text += text;
    choice.tokens.insert(choice.tokens.end(), news.tokens.begin(), news.tokens.end());
  }
  if (!is_making_ && finished_ == choices_.size()) finish();
}

void Generation::end_span(const std::string& error) {
  if (!context_.span) return;
  RequestSpan& span = *context_.span;
  const Json used = usage();
  Json reasons = Json::array();
  for (std::size_t i = 0; i < choices_.size(); ++i) reasons.push_back(finish_reason_of(i));
  span.set("gen_ai.request.id", context_.id);
  span.set("gen_ai.response.model", request_.model);
  span.set("gen_ai.request.n", request_.n);
  span.set("gen_ai.request.max_tokens", request_.generate.max_tokens);
  span.set("gen_ai.usage.prompt_tokens", used.at("prompt_tokens"));
  span.set("gen_ai.usage.completion_tokens", used.at("completion_tokens"));
  span.set("gen_ai.response.finish_reasons", std::move(reasons));
  span.set("kvhive.usage.cached_tokens", used.at("prompt_tokens_details").at("cached_tokens"));
  span.end(error);
}

void Generation::begin_stream() {
  if (!std::exchange(is_streaming_, true))
    context_.exchange->begin_events({{"X-Request-Id", context_.id}});
}

void Generation::stream(std::size_t index, const std::string& text,
                        const std::vector<OutputToken>& tokens) {
  Choice& choice = choices_[index];
  const bool has_ended = choice.reason != Finish::none;
  if (text.empty() && tokens.empty() && !has_ended) return;
  make(
      bytes_of(index, tokens),
      [this, index, text, tokens] { return event_of(index, text, tokens); },
      [this, index](const std::string& event) {
        if (event.empty()) return;
        choices_[index].scored_prompt = {};  // its first event has told it
        begin_stream();
        last_sent_ = std::chrono::steady_clock::now();
        context_.exchange->send_event(event);
        if (context_.exchange->is_full()) hold();
      });
}

/// Its client reads more slowly than engines write: their news stay in the channels meanwhile.
void Generation::hold() {
  for (const Choice& choice : choices_)
    if (choice.reason == Finish::none) context_.hive.hold(choice.key);
  context_.exchange->on_room = [self = shared_from_this()] {
    for (const Choice& choice : self->choices_)
      if (choice.reason == Finish::none) self->context_.hive.go_on(choice.key);
  };
}

/// Roughly, of what is written next.
std::size_t Generation::bytes_of(std::size_t index, const std::vector<OutputToken>& tokens) const {
  const Choice& choice = choices_[index];
  std::size_t bytes = choice.text.size() + scores_bytes(choice.scored_prompt);
  if (request_.logprobs) bytes += scores_bytes(tokens);
  if (!repeats_prompt() || choice.has_begun) return bytes;
  const AnswerRequest::Prompt& prompt = request_.prompts[choice.prompt];
  return bytes + prompt.text.size() + 8 * (prompt.tokens.size() + prompt.told.size());
}

/// Makes a text and calls `then` with it; a long one is made in another thread.
void Generation::make(std::size_t bytes, std::function<std::string()> text,
                      std::function<void(std::string)> then) {
  if (bytes <= Background::kShortBytes) return then(text());
  is_making_ = true;
  struct Made {
    std::string text;
    std::exception_ptr failure;
  };
  const auto made = std::make_shared<Made>();
  const auto work = [made, text = std::move(text)] {
    try {
      made->text = text();
    } catch (...) {
      made->failure = std::current_exception();
    }
  };
  const auto on_done = [self = shared_from_this(), made, then = std::move(then)] {
    self->is_making_ = false;
    if (self->is_over_) return;
    self->attempt([&] {
      if (made->failure) std::rethrow_exception(made->failure);
      then(std::move(made->text));
      self->go_on();
    });
  };
  context_.background.run(
      context_.turn,
      {bytes, [exchange = context_.exchange] { return !exchange->is_gone(); }, work, on_done});
}

/// With what came while a text was made.
void Generation::go_on() {
  if (is_over_) return;
  if (finished_ == choices_.size()) return finish();
  for (auto& [index, news] : std::exchange(held_back_, {})) hear(index, news);
}

/// Empty = there is nothing to show.
std::string Generation::event_of(std::size_t index, const std::string& text,
                                 const std::vector<OutputToken>& tokens) {
  Json news = written(index, text, tokens);
  if (news.is_null()) return {};
  Json event = head();
  event["choices"] = Json::array({std::move(news)});
  if (request_.continuous_usage) event["usage"] = usage_of(index);
  return dumped(event);
}

void Generation::finish() {
  if (request_.stream) {
    end();
    if (request_.include_usage) {
      Json event = head();
      event["choices"] = Json::array();
      event["usage"] = usage();
      context_.exchange->send_event(dumped(event));
    }
    context_.exchange->send_event("[DONE]");
    return context_.exchange->end();
  }
  if (request_.best_of > request_.n) keep_the_best();
  std::size_t bytes = 0;
  for (std::size_t i = 0; i < choices_.size(); ++i) bytes += bytes_of(i, choices_[i].tokens);
  make(
      bytes, [this] { return whole_answer(); },
      [this](std::string answer) {
        end();
        context_.exchange->answer(
            {200, std::move(answer), "application/json", {{"X-Request-Id", context_.id}}});
      });
}

/// Of each prompt's answers: those with the highest log-probability, as in vLLM's V0.
void Generation::keep_the_best() {
  const auto logprob = [](const Choice& choice) {
    double sum = 0;
    for (const OutputToken& token : choice.tokens) sum += token.logprob;
    return sum;
  };
  std::vector<Choice> best;
  for (auto first = choices_.begin(); first != choices_.end(); first += request_.best_of) {
    const auto last = first + request_.best_of, told = first + request_.n;
    std::stable_sort(first, last,
                     [&](const Choice& a, const Choice& b) { return logprob(a) > logprob(b); });
    // The best may have found what its siblings had just computed.
    const std::uint32_t cached =
        std::min_element(first, last, [](const Choice& a, const Choice& b) {
          return a.cached_tokens < b.cached_tokens;
        })->cached_tokens;
    for (auto other = told; other != last; ++other) generated_in_vain_ += other->generated;
    for (auto one = first; one != told; ++one) one->cached_tokens = cached;
    std::move(first, told, std::back_inserter(best));
  }
  choices_ = std::move(best);
  finished_ = choices_.size();
}

void Generation::end() {
  end_span("");
  is_over_ = true;
  timer_.cancel();
}

std::string Generation::whole_answer() {
  Json answer = head();
  answer["choices"] = Json::array();
  for (std::size_t i = 0; i < choices_.size(); ++i)
    answer["choices"].push_back(written(i, choices_[i].text, choices_[i].tokens));
  answer["usage"] = usage();
  complete(answer);
  return dumped(answer);
}

Generation::Json Generation::head() const {
  return {{"id", context_.id},
          {"object", kind()},
          {"created", context_.created.count()},
          {"model", request_.model}};
}

Generation::Json Generation::written(std::size_t index, const std::string& text,
                                     const std::vector<OutputToken>& tokens) {
  Json json = write(index, text, tokens);
  if (!json.is_null()) choices_[index].has_begun = true;
  return json;
}

Generation::Json Generation::finish_reason_of(std::size_t index) const {
  const Finish reason = choices_[index].reason;
  return reason == Finish::none ? Json() : Json(finish_name(reason));
}

std::string Generation::token_text(TokenId token) const {
  return request_.token_ids_as_text ? "token_id:" + std::to_string(token) : model().text_of(token);
}

float Generation::told(float logprob) { return std::max(logprob, -9999.0f); }

Generation::Json Generation::prompt_logprobs_of(std::size_t index) const {
  if (!request_.prompt_logprobs) return {};
  Json all = Json::array();
  for (const PromptLogprob& token : choice(index).scored_prompt) {
    if (all.empty()) {  // the first token has nothing before it
      all.push_back(nullptr);
      continue;
    }
    const auto entry = [this](TokenId id, float logprob, std::size_t rank) {
      return Json{
          {"logprob", told(logprob)}, {"rank", rank}, {"decoded_token", model().text_of(id)}};
    };
    Json place = Json::object();
    place[std::to_string(token.token)] = entry(token.token, token.logprob, token.rank);
    // For a prompt that is repeated more may have been asked for.
    const std::size_t most = std::min<std::size_t>(token.top.size(), *request_.prompt_logprobs);
    for (std::size_t i = 0; i < most; ++i)
      place[std::to_string(token.top[i].token)] =
          entry(token.top[i].token, token.top[i].logprob, i + 1);
    all.push_back(std::move(place));
  }
  return all;
}

/// The engine cuts the stop text off, so it is looked for in the tokens' text, where the last one
/// adds to it.
Generation::Json Generation::stop_reason_of(std::size_t index) const {
  const Choice& choice = choices_[index];
  if (choice.end) return *choice.end;
  if (choice.reason != Finish::stop || choice.last_tokens.empty()) return {};
  const std::span<const TokenId> last = choice.last_tokens;
  const auto& ids = request_.generate.stop_token_ids;
  if (std::find(ids.begin(), ids.end(), last.back()) != ids.end()) return last.back();
  const std::string text = decode(model().tokenizer, last);
  const std::size_t before = decode(model().tokenizer, last.first(last.size() - 1)).size();
  std::size_t first = std::string::npos;
  Json found;
  for (const std::string& stop : request_.generate.stop) {
    const std::size_t from = before + 1 > stop.size() ? before + 1 - stop.size() : 0;
    const std::size_t at = text.find(stop, from);
    if (at >= first) continue;
    first = at;
    found = stop;
  }
  return found;
}

/// As vLLM tells it in each event: of the answer that the event is of.
Generation::Json Generation::usage_of(std::size_t index) const {
  const Choice& choice = choices_[index];
  return usage_json(choice.prompt_tokens, choice.generated, choice.cached_tokens);
}

Generation::Json Generation::usage() const {
  std::uint64_t prompt = 0, cached = 0, generated = generated_in_vain_;
  for (const Choice& choice : choices_) {
    generated += choice.generated;
    if (&choice != &choices_.front() && (&choice)[-1].prompt == choice.prompt) continue;
    prompt += choice.prompt_tokens;  // of a prompt with several answers once
    cached += choice.cached_tokens;
  }
  return usage_json(prompt, generated, cached);
}

}  // namespace kvhive
