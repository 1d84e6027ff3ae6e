#pragma once
// One request for an answer under way: its requests to the engines, and its answer, whole or
// streamed. How an answer is written is its kind's: completion.hpp, chat/chat_completion.hpp.

#include <boost/asio/steady_timer.hpp>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tools/serve/hive/hive.hpp"
#include "tools/serve/openai/answer_request.hpp"
#include "tools/serve/openai/beam_run.hpp"
#include "tools/serve/trace/request_span.hpp"
#include "tools/serve/turns/background.hpp"

namespace kvhive {

/// Whom a request comes from, and what it is called.
struct AnswerContext {
  Hive& hive;
  std::shared_ptr<const ServedModel> model;
  std::shared_ptr<Exchange> exchange;
  std::string id;
  std::chrono::seconds created;       ///< since 1970
  std::chrono::seconds keep_alive;    ///< between comments in a silent stream; 0 = none
  std::shared_ptr<RequestSpan> span;  ///< null = nobody traces
  Background& background;
  Turn turn;  ///< in it
};

class Generation : public std::enable_shared_from_this<Generation> {
 public:
  Generation(AnswerContext context, AnswerRequest request);
  virtual ~Generation() = default;
  Generation(const Generation&) = delete;
  Generation& operator=(const Generation&) = delete;

  /// It lives until it is answered, or its client has gone.
  void start();

 protected:
  using Json = nlohmann::ordered_json;

  /// One of the answers that were asked for.
  struct Choice {
    explicit Choice(std::size_t number) : prompt(number) {}

    Hive::Key key = 0;
    std::size_t prompt;
    std::string text;  ///< of an answer that is not streamed, as the tokens
    std::vector<OutputToken> tokens;
    std::vector<PromptLogprob> scored_prompt;
    std::uint32_t prompt_tokens = 0, cached_tokens = 0;
    bool has_begun = false;  ///< something of it was written
    Finish reason = Finish::none;
    std::uint32_t generated = 0;  ///< tokens
    std::vector<TokenId> last_tokens;
    std::optional<TokenId> end;  ///< the token that ended a beam
  };

  /// The answer's "object".
  virtual std::string_view kind() const = 0;
  /// The request's field with the prompt.
  virtual std::string_view prompt_field() const = 0;
  /// Whether answers hold the prompt, too.
  virtual bool repeats_prompt() const { return request_.return_token_ids; }
  /// What is new of an answer, or all of it if it is not streamed. Null = nothing to show. May be
  /// called in another thread; nothing else changes meanwhile.
  virtual Json write(std::size_t index, const std::string& text,
                     const std::vector<OutputToken>& tokens) = 0;

  /// Adds what is the whole answer's, if it is not streamed. As write().
  virtual void complete(Json& /*answer*/) const {}

  const AnswerRequest& request() const { return request_; }
  const ServedModel& model() const { return *context_.model; }
  const Choice& choice(std::size_t index) const { return choices_[index]; }
  std::size_t choices() const { return choices_.size(); }
  /// Whether this is the first that is written of an answer.
  bool is_first(std::size_t index) const { return !choices_[index].has_begun; }
  /// "stop", "length" or "abort"; null = it goes on.
  Json finish_reason_of(std::size_t index) const;
  /// The stop text or token that ended it; null = an end-of-sequence token, or no stop.
  Json stop_reason_of(std::size_t index) const;
  /// A log-probability as JSON can say it: minus infinity is -9999, as in vLLM.
  static float told(float logprob);
  /// A token as logprobs show it.
  std::string token_text(TokenId token) const;
  /// How likely the prompt's tokens are, as vLLM tells it; null = nobody has asked.
  Json prompt_logprobs_of(std::size_t index) const;

 private:
  void submit_from(std::size_t first);
  void start_beams();
  void on_beams(const std::optional<ClientError>& error);
  void take_beams(std::size_t prompt);
  void keep_the_best();
  template <class Step>
  void attempt(Step step);
  void hear(std::size_t index, const Progress& news);
  void on_news(std::size_t index, const Progress& news);
  void stream(std::size_t index, const std::string& text, const std::vector<OutputToken>& tokens);
  Json written(std::size_t index, const std::string& text, const std::vector<OutputToken>& tokens);
  std::size_t bytes_of(std::size_t index, const std::vector<OutputToken>& tokens) const;
  void make(std::size_t bytes, std::function<std::string()> text,
            std::function<void(std::string)> then);
  std::string event_of(std::size_t index, const std::string& text,
                       const std::vector<OutputToken>& tokens);
  void go_on();
  void end();
  std::string whole_answer();
  void begin_stream();
  void hold();
  void keep_alive();
  void fail(const ApiError& error);
  void fail_of(const ClientError& said);
  void cancel();
  void finish();
  void end_span(const std::string& error);
  Json head() const;
  Json usage() const;
  Json usage_of(std::size_t index) const;

  const AnswerContext context_;
  const AnswerRequest request_;
  boost::asio::steady_timer timer_;
  std::vector<Choice> choices_;
  std::size_t finished_ = 0;
  std::vector<std::shared_ptr<BeamRun>> beams_;  ///< by prompt
  std::size_t ended_beams_ = 0;
  std::uint64_t generated_in_vain_ = 0;  ///< tokens of answers that were not the best
  bool is_streaming_ = false;
  bool is_making_ = false;  ///< text, in another thread; news are held back until it is sent
  std::vector<std::pair<std::size_t, Progress>> held_back_;
  std::chrono::steady_clock::time_point last_sent_ = std::chrono::steady_clock::now();
  bool is_over_ = false;
};

std::vector<TokenId> ids_of(const std::vector<OutputToken>& tokens);

}  // namespace kvhive
