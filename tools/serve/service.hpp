#pragma once
// The endpoints: which request goes where, and who may ask.

#include <boost/asio/io_context.hpp>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "tools/serve/access/api_keys.hpp"
#include "tools/serve/access/hosts.hpp"
#include "tools/serve/access/origins.hpp"
#include "tools/serve/access/salt_callers.hpp"
#include "tools/serve/chat/chat_request.hpp"
#include "tools/serve/http/exchange.hpp"
#include "tools/serve/metrics/metrics.hpp"
#include "tools/serve/model/model_services.hpp"
#include "tools/serve/openai/completion_request.hpp"
#include "tools/serve/openai/generation.hpp"
#include "tools/serve/openai/unknown_fields.hpp"
#include "tools/serve/page/hive_page.hpp"
#include "tools/serve/turns/background.hpp"

namespace kvhive {

struct ToTokenize;  ///< what /tokenize was asked

struct ServiceOptions {
  ApiKeys api_keys;                     ///< who asks for work must name one; none = all may
  std::string api_key_file{};           ///< where they are from; empty = from nowhere
  std::chrono::seconds keep_alive{10};  ///< between comments in silent streams; 0 = none
  std::shared_ptr<SpanFile> spans;      ///< null = nobody traces
  SaltCallers salt_callers = SaltCallers::trusted;
  Hosts hosts;      ///< the names by which this service may be called
  Origins origins;  ///< whose pages may read answers
  PromptEmbeds prompt_embeds = PromptEmbeds::refused;
};

class Service {
 public:
  Service(boost::asio::io_context& loop, ModelServices& models, const PoolLink& link,
          Metrics& metrics, HivePage& page, const ServiceOptions& options);

  void handle(const std::shared_ptr<Exchange>& exchange);
  /// The answer that needs no body: most of them say why the request is refused.
  std::optional<HttpAnswer> answer_to_head(Exchange& exchange) const;
  /// Reads the file of API keys and opens the trace file anew. Keys that cannot be taken leave
  /// those that are there.
  void reload();
  const UnknownFields& unknown_fields() const { return unknown_fields_; }

 private:
  using Handler = void (Service::*)(const std::shared_ptr<Exchange>&);
  struct Route {
    std::string_view method, path;  ///< a path may end in NAME, for anything that is not empty
    Handler handler;
    bool needs_model = true;
    Turn::Kind kind = Turn::Kind::answer;  ///< of its work in the background
    /// False of what tells of the service itself. Whatever has it work for its caller asks for one.
    bool asks_for_key = true;
    bool is_of(std::string_view asked) const;
  };
  static const std::vector<Route>& routes();
  static std::string paths();

  const Route* route_of(const HttpRequest& request) const;
  bool is_allowed(const HttpRequest& request, const Route* route) const;
  bool takes_salt_of(const Exchange& exchange) const;
  bool refuses_salt(const std::shared_ptr<Exchange>& exchange, const AnswerRequest& request) const;
  void health(const std::shared_ptr<Exchange>& exchange);
  void metrics(const std::shared_ptr<Exchange>& exchange);
  void page(const std::shared_ptr<Exchange>& exchange);
  void version(const std::shared_ptr<Exchange>& exchange);
  nlohmann::ordered_json described_models() const;
  void models(const std::shared_ptr<Exchange>& exchange);
  void model(const std::shared_ptr<Exchange>& exchange);
  void completions(const std::shared_ptr<Exchange>& exchange);
  void embeddings(const std::shared_ptr<Exchange>& exchange);
  void chat_completions(const std::shared_ptr<Exchange>& exchange);
  void tokenize(const std::shared_ptr<Exchange>& exchange);
  void detokenize(const std::shared_ptr<Exchange>& exchange);
  void on_chat(const std::shared_ptr<Exchange>& exchange, const ModelInUsePtr& serving,
               ChatRequest asked);
  void on_chat_tokens(const std::shared_ptr<Exchange>& exchange, const ModelInUsePtr& serving,
                      ChatRequest request, Expected<std::vector<TokenId>> tokens);
  void on_tokenize(const std::shared_ptr<Exchange>& exchange, const ModelInUsePtr& serving,
                   ToTokenize asked);
  AnswerContext context_of(const std::shared_ptr<Exchange>& exchange, const ModelInUsePtr& serving,
                           const char* prefix);

  // Steps of an answer. The next one is not called once the client has gone.
  /// Calls `on_read` with the model that the request's body names and what `read` makes of it;
  /// answers if the body is in error, or the model cannot be served.
  /// \param read  (const nlohmann::json&, const ServedModel&) -> tl::expected<Asked, ApiError>;
  ///              also in another thread
  /// \param on_read  (const ModelInUsePtr&, Asked)
  template <class Read, class OnRead>
  void parse(const std::shared_ptr<Exchange>& exchange, Read read, OnRead on_read);
  /// Renders the request's messages.
  void render(const std::shared_ptr<Exchange>& exchange, ModelInUse& serving,
              std::function<void(std::string)> on_text);
  /// Calls `work` in another thread, when it is the caller's turn, and `on_done` with its result.
  /// \param bytes  to work on
  template <class Work, class OnDone>
  void in_the_background(const std::shared_ptr<Exchange>& exchange, std::size_t bytes, Work work,
                         OnDone on_done);
  Turn turn_of(const Exchange& exchange) const;

  ModelServices& models_;
  const PoolLink& link_;
  Metrics& metrics_;
  HivePage& page_;
  ApiKeys api_keys_;
  const std::string api_key_file_;
  const std::chrono::seconds keep_alive_;
  const SaltCallers salt_callers_;
  const PromptEmbeds prompt_embeds_;
  const Hosts hosts_;
  const Origins origins_;
  const std::shared_ptr<SpanFile> spans_;
  UnknownFields unknown_fields_;
  Background background_;
};

}  // namespace kvhive
