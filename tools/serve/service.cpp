#include "tools/serve/service.hpp"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <nlohmann/json.hpp>
#include <random>
#include <utility>

#include <fmt/format.h>

#include "base/json_file.hpp"
#include "base/log.hpp"
#include "models/text/detokenizer.hpp"
#include "tools/program/version.hpp"
#include "tools/serve/chat/chat_completion.hpp"
#include "tools/serve/openai/completion.hpp"
#include "tools/serve/openai/fields.hpp"

namespace kvhive {
namespace {

namespace asio = boost::asio;
using OrderedJson = nlohmann::ordered_json;

/// The longest text of which tokens are told: more than any prompt of the model has. It takes as
/// long as others of long prompts should wait, a few tenths of a second.
std::size_t most_text_bytes(const ServedModel& model) {
  return std::max<std::size_t>(std::size_t{1} << 20, std::size_t{16} * model.max_model_len);
}

HttpAnswer json_answer(const OrderedJson& body) {
  return {200,
          body.dump(-1, ' ', false, OrderedJson::error_handler_t::replace),
          "application/json",
          {}};
}

/// Of the caller's own id, else of 128 random bits: nobody guesses
/// another's.
std::string id_of(const std::string& prefix, const HttpRequest& request) {
  if (const auto given = request.id(); !given.empty()) return prefix + std::string(given);
  static std::random_device device;
  return prefix + fmt::format("{:08x}{:08x}{:08x}{:08x}", device(), device(), device(), device());
}

HttpAnswer tokenized(const ServedModel& model, const std::string& text, AddSpecial add_special,
                     bool with_texts) {
  const auto tokens = model.tokenizer.encode(text, add_special);
  if (!tokens) return to_answer({400, "prompt: " + tokens.error().text, "prompt"});
  OrderedJson answer = {{"count", tokens->size()},
                        {"max_model_len", model.max_model_len},
                        {"tokens", *tokens},
                        {"token_strs", nullptr}};
  if (with_texts) {
    answer["token_strs"] = OrderedJson::array();
    for (const TokenId token : *tokens) answer["token_strs"].push_back(model.text_of(token));
  }
  return json_answer(answer);
}

/// HEAD is asked as GET is, and answered without the body (http/session.cpp).
std::string_view method_of(const HttpRequest& request) {
  return request.method == "HEAD" ? std::string_view("GET") : request.method;
}

HttpAnswer wrong_method(const HttpRequest& request, std::string_view right) {
  HttpAnswer answer =
      to_answer({405, "'" + shown_text(request.method) + "' is not what " +
                          shown_text(request.path) + " is asked with; use " + std::string(right)});
  answer.headers.emplace_back("Allow", right == "GET" ? "GET, HEAD" : right);
  return answer;
}

/// The last part of a path, which may name what has a slash: "org%2Fmodel", or just "org/model".
std::string name_in(std::string_view path) {
  path.remove_prefix(std::string_view("/v1/models/").size());
  std::string name;
  for (std::size_t i = 0; i < path.size(); ++i) {
    unsigned letter = 0;
    const bool is_coded =
        path[i] == '%' && i + 2 < path.size() &&
        std::from_chars(path.data() + i + 1, path.data() + i + 3, letter, 16).ptr ==
            path.data() + i + 3;
    name += is_coded ? static_cast<char>(letter) : path[i];
    if (is_coded) i += 2;
  }
  return name;
}

/// The most tokens, where the request does not say: what the prompt leaves.
std::uint32_t room_behind(const std::vector<TokenId>& prompt, const ServedModel& model) {
  return prompt.size() < model.max_model_len
             ? model.max_model_len - static_cast<std::uint32_t>(prompt.size())
             : 1;
}

}  // namespace

Service::Service(asio::io_context& loop, ModelServices& models, const PoolLink& link,
                 Metrics& metrics, HivePage& page, const ServiceOptions& options)
    : models_(models),
      link_(link),
      metrics_(metrics),
      page_(page),
      api_keys_(options.api_keys),
      api_key_file_(options.api_key_file),
      keep_alive_(options.keep_alive),
      salt_callers_(options.salt_callers),
      prompt_embeds_(options.prompt_embeds),
      hosts_(options.hosts),
      origins_(options.origins),
      spans_(options.spans),
      background_(loop) {}

const std::vector<Service::Route>& Service::routes() {
  static const std::vector<Route> kRoutes = {
      {"GET", "/health", &Service::health, true, Turn::Kind::answer, false},
      {"GET", "/metrics", &Service::metrics, false, Turn::Kind::answer, false},
      {"GET", "/version", &Service::version, false, Turn::Kind::answer, false},
      {"GET", "/v1/models", &Service::models},
      {"GET", "/v1/models/NAME", &Service::model},
      {"POST", "/v1/completions", &Service::completions},
      {"POST", "/v1/chat/completions", &Service::chat_completions},
      {"POST", "/v1/embeddings", &Service::embeddings},
      {"POST", "/tokenize", &Service::tokenize, true, Turn::Kind::other},
      {"POST", "/detokenize", &Service::detokenize, true, Turn::Kind::other},
  };
  return kRoutes;
}

bool Service::Route::is_of(std::string_view asked) const {
  if (!path.ends_with("/NAME")) return asked == path;
  const std::string_view before = path.substr(0, path.size() - 4);
  return asked.starts_with(before) && asked.size() > before.size();
}

/// All that can be asked for, for those who ask for something else.
std::string Service::paths() {
  std::string all = "/, /hive.json";
  for (const Route& route : routes()) all += ", " + std::string(route.path);
  return all;
}

void Service::reload() {
  if (spans_) spans_->reopen();
  if (api_key_file_.empty()) return;
  // To open a pipe would wait for whoever writes into it, and with it all callers.
  std::error_code unknown;
  if (!std::filesystem::is_regular_file(api_key_file_, unknown))
    return spdlog::error("--api-key-file: '{}' is no file any more; the keys stay as they were",
                         api_key_file_);
  auto keys = ApiKeys::load(api_key_file_);
  if (!keys) return spdlog::error("{}; the keys stay as they were", keys.error().text);
  // Each domain has channels of its own, which are opened at the start.
  if (keys->domains() != api_keys_.domains())
    return spdlog::error("{}: other domains than before take a restart; the keys stay as they were",
                         api_key_file_);
  api_keys_ = std::move(*keys);
  spdlog::info("the keys are those of {} now", api_key_file_);
}

std::optional<HttpAnswer> Service::answer_to_head(Exchange& exchange) const {
  const HttpRequest& request = exchange.request();
  if (auto refusal = hosts_.refusal_of(request)) return refusal;
  exchange.headers = origins_.headers_for(request);
  if (auto answer = origins_.answer_to_question(request)) return answer;
  const Route* const route = route_of(request);
  if (route != nullptr) exchange.handler = route->path;
  if (!is_allowed(request, route))
    return to_answer(
        {401, "no valid API key was given; send the header Authorization: Bearer KEY"});
  const ApiKeys::Key* const key = api_keys_.find(request.header("Authorization"));
  exchange.domain = key != nullptr ? key->domain : "";
  exchange.key_number = key != nullptr ? key->number : 0;
  if (page_.has(request.path)) return std::nullopt;
  if (route == nullptr)
    return to_answer(
        {404, "there is no '" + shown_text(request.path) + "' here; there are " + paths()});
  if (route->method != method_of(request)) return wrong_method(request, route->method);
  if (!route->needs_model) return std::nullopt;
  if (const auto trouble = models_.trouble()) return to_answer(*trouble);
  return std::nullopt;
}

void Service::handle(const std::shared_ptr<Exchange>& exchange) {
  if (auto answer = answer_to_head(*exchange)) return exchange->answer(std::move(*answer));
  const HttpRequest& request = exchange->request();
  if (page_.has(request.path)) return page(exchange);
  (this->*route_of(request)->handler)(exchange);
}

/// Null = nothing is at the request's path.
const Service::Route* Service::route_of(const HttpRequest& request) const {
  const auto route =
      std::ranges::find_if(routes(), [&](const Route& each) { return each.is_of(request.path); });
  return route != routes().end() ? &*route : nullptr;
}

/// Who has no key is not told either what is below /v1 and what is not.
bool Service::is_allowed(const HttpRequest& request, const Route* route) const {
  const bool asks = route != nullptr ? route->asks_for_key : request.path.starts_with("/v1/");
  return api_keys_.empty() || !asks || api_keys_.find(request.header("Authorization")) != nullptr;
}

/// Where keys are asked for, nobody gets here without one.
bool Service::takes_salt_of(const Exchange& exchange) const {
  if (salt_callers_ != SaltCallers::trusted) return salt_callers_ == SaltCallers::all;
  return !api_keys_.empty() || exchange.is_from_this_machine();
}

/// True = the request is answered. A salt that is not taken is never left out instead: its caller
/// relies on it.
bool Service::refuses_salt(const std::shared_ptr<Exchange>& exchange,
                           const AnswerRequest& request) const {
  if (request.generate.cache_salt.empty() || takes_salt_of(*exchange)) return false;
  exchange->answer(to_answer(
      {403,
       salt_callers_ == SaltCallers::none
           ? "cache_salt is not taken here; leave it out, or ask the operator (--cache-salts)"
           : "cache_salt is taken from callers with an API key only, or from this machine; ask the "
             "operator (--api-key-file, --cache-salts)",
       "cache_salt"}));
  return true;
}

void Service::health(const std::shared_ptr<Exchange>& exchange) {
  models_.look_for_daemon([this, exchange](std::optional<ApiError> trouble) {
    if (!trouble) {
      const std::string waits = link_.no_engine_takes_requests();
      return exchange->answer(waits.empty() ? HttpAnswer{200, "", "", {}}
                                            : to_answer({503, waits}));
    }
    trouble->status = 503;  // also if it refuses this service: who balances loads looks for that
    exchange->answer(to_answer(*trouble));
  });
}

void Service::metrics(const std::shared_ptr<Exchange>& exchange) { metrics_.answer(exchange); }

void Service::page(const std::shared_ptr<Exchange>& exchange) {
  exchange->handler = "page";
  if (method_of(exchange->request()) == "GET") return page_.answer(exchange);
  exchange->answer(wrong_method(exchange->request(), "GET"));
}

void Service::version(const std::shared_ptr<Exchange>& exchange) {
  exchange->answer(json_answer({{"version", release()}}));
}

/// Those that can be served now.
OrderedJson Service::described_models() const {
  OrderedJson all = OrderedJson::array();
  for (const ModelInUsePtr& serving : models_.servings()) {
    if (serving->host.trouble()) continue;
    const ServedModel& served = serving->model();
    OrderedJson model = {{"id", served.name},
                         {"object", "model"},
                         {"created", served.created.count()},
                         {"owned_by", "kvhive"},
                         {"root", served.directory},
                         {"parent", nullptr},
                         {"max_model_len", served.max_model_len},
                         {"permission", OrderedJson::array()}};
    all.push_back(model);
    for (const std::string& adapter : served.adapters) {
      OrderedJson one = model;
      one["id"] = adapter;
      one["parent"] = served.name;
      all.push_back(std::move(one));
    }
  }
  return all;
}

void Service::models(const std::shared_ptr<Exchange>& exchange) {
  exchange->answer(json_answer({{"object", "list"}, {"data", described_models()}}));
}

void Service::model(const std::shared_ptr<Exchange>& exchange) {
  const std::string name = name_in(exchange->request().path);
  const OrderedJson all = described_models();
  for (const OrderedJson& model : all)
    if (model["id"] == name) return exchange->answer(json_answer(model));
  for (const ModelInUsePtr& serving : models_.servings())
    if (const auto names = names_of(serving->model());
        std::ranges::find(names, name) != names.end())
      if (const auto trouble = serving->host.trouble())
        return exchange->answer(to_answer(*trouble));
  std::string known;
  for (const OrderedJson& model : all)
    known += (known.empty() ? "" : ", ") + model["id"].get<std::string>();
  exchange->answer(to_answer(
      {404, "there is no model '" + shown_text(name) + "' here; there are " + known, "model"}));
}

// -- steps of an answer ---------------------------------------------------------------------------

template <class Work, class OnDone>
void Service::in_the_background(const std::shared_ptr<Exchange>& exchange, std::size_t bytes,
                                Work work, OnDone on_done) {
  const auto result = std::make_shared<std::optional<decltype(work())>>();
  background_.run(turn_of(*exchange),
                  {bytes, [exchange] { return !exchange->is_gone(); },
                   [result, work = std::move(work)] { *result = work(); },
                   [result, on_done = std::move(on_done)] { on_done(std::move(**result)); }});
}

Turn Service::turn_of(const Exchange& exchange) const {
  const Route* const route = route_of(exchange.request());
  return {route != nullptr ? route->kind : Turn::Kind::answer, exchange.key_number};
}

/// A long body's JSON is made, looked through and freed in the other thread.
template <class Read, class OnRead>
void Service::parse(const std::shared_ptr<Exchange>& exchange, Read read, OnRead on_read) {
  using Asked = typename decltype(read(nlohmann::json(), std::declval<ServedModel&>()))::value_type;
  struct Parsed {
    ModelInUsePtr serving;
    Asked asked;
  };
  using Result = tl::expected<Parsed, ApiError>;
  const auto parse_body = [exchange, servings = models_.servings(),
                           read = std::move(read)]() -> Result {
    const std::string& text = exchange->request().body;
    const auto body = parse_json_object(text);
    if (!body)
      return tl::unexpected<ApiError>(
          {400, "the body (" + std::to_string(text.size()) + " bytes) is not one JSON object: " +
                    body.error().text + "; send one, as {\"prompt\": \"In the beginning\"}"});
    auto serving = choose(servings, *body);
    if (!serving) return tl::unexpected(std::move(serving.error()));
    auto asked = read(*body, (*serving)->model());
    if (!asked) return tl::unexpected(std::move(asked.error()));
    return Parsed{std::move(*serving), std::move(*asked)};
  };
  const auto on_parsed = [exchange, on_read = std::move(on_read)](Result parsed) {
    if (!parsed) return exchange->answer(to_answer(parsed.error()));
    if (const auto trouble = parsed->serving->host.trouble())
      return exchange->answer(to_answer(*trouble));
    on_read(parsed->serving, std::move(parsed->asked));
  };
  const std::size_t bytes = exchange->request().body.size();
  if (bytes <= Background::kShortBytes) return on_parsed(parse_body());
  in_the_background(exchange, bytes, parse_body, on_parsed);
}

void Service::render(const std::shared_ptr<Exchange>& exchange, ModelInUse& serving,
                     std::function<void(std::string)> on_text) {
  // Its renderer has ended with it.
  if (&serving != serving.host.serving().get()) return exchange->answer(to_answer(another_model()));
  if (!serving.renderer)
    return exchange->answer(to_answer({400, "'" + serving.model().name +
                                                "' has no chat template; start kvhive serve with "
                                                "--chat-template FILE, or use /v1/completions"}));
  serving.renderer->render(
      turn_of(*exchange), exchange->request().body, [exchange] { return !exchange->is_gone(); },
      [exchange, on_text = std::move(on_text)](tl::expected<std::string, ApiError> text) {
        if (!text) return exchange->answer(to_answer(text.error()));
        on_text(std::move(*text));
      });
}

// -- answers --------------------------------------------------------------------------------------

void Service::completions(const std::shared_ptr<Exchange>& exchange) {
  const auto read = [embeds = prompt_embeds_](const nlohmann::json& body,
                                              const ServedModel& model) {
    return parse_completion(body, model, embeds);
  };
  parse(exchange, read, [this, exchange](const ModelInUsePtr& serving, CompletionRequest request) {
    unknown_fields_.add(request.unknown_fields);
    if (refuses_salt(exchange, request)) return;
    const auto start = [this, exchange, serving](CompletionRequest asked) {
      std::make_shared<Completion>(context_of(exchange, serving, "cmpl-"), std::move(asked))
          ->start();
    };
    if (!request.wants_tokens()) return start(std::move(request));
    std::size_t bytes = 0;
    for (const AnswerRequest::Prompt& prompt : request.prompts) bytes += prompt.text.size();
    in_the_background(
        exchange, bytes,
        [serving, asked = std::move(request)] {
          CompletionRequest told = asked;
          for (AnswerRequest::Prompt& prompt : told.prompts) {
            if (prompt.text.empty()) continue;
            if (auto ids = serving->model().tokenizer.encode(prompt.text, AddSpecial::yes); ids)
              prompt.told = std::move(*ids);
          }
          return told;
        },
        start);
  });
}

AnswerContext Service::context_of(const std::shared_ptr<Exchange>& exchange,
                                  const ModelInUsePtr& serving, const char* prefix) {
  const auto now = std::chrono::duration_cast<std::chrono::seconds>(
      std::chrono::system_clock::now().time_since_epoch());
  const HttpRequest& request = exchange->request();
  std::shared_ptr<RequestSpan> span;
  if (spans_)
    span = std::make_shared<RequestSpan>(*spans_, parse_traceparent(request.header("traceparent")),
                                         exchange->arrived);
  return {serving->host.hives().of(exchange->domain),
          {serving->loaded, &serving->model()},
          exchange,
          id_of(prefix, request),
          now,
          keep_alive_,
          std::move(span),
          background_,
          turn_of(*exchange)};
}

void Service::chat_completions(const std::shared_ptr<Exchange>& exchange) {
  parse(exchange, parse_chat, [this, exchange](const ModelInUsePtr& serving, ChatRequest request) {
    on_chat(exchange, serving, std::move(request));
  });
}

void Service::on_chat(const std::shared_ptr<Exchange>& exchange, const ModelInUsePtr& serving,
                      ChatRequest asked) {
  unknown_fields_.add(asked.unknown_fields);
  if (refuses_salt(exchange, asked)) return;
  render(exchange, *serving,
         [this, exchange, serving, request = std::move(asked)](std::string text) {
           const std::size_t bytes = text.size();
           in_the_background(
               exchange, bytes,
               // The template has written the tokens that begin a prompt.
               [serving, text = std::move(text)] {
                 return serving->model().tokenizer.encode(text, AddSpecial::no);
               },
               [this, exchange, serving, request](Expected<std::vector<TokenId>> tokens) {
                 on_chat_tokens(exchange, serving, request, std::move(tokens));
               });
         });
}

void Service::on_chat_tokens(const std::shared_ptr<Exchange>& exchange,
                             const ModelInUsePtr& serving, ChatRequest request,
                             Expected<std::vector<TokenId>> tokens) {
  if (!tokens)
    return exchange->answer(to_answer({400, "messages: " + tokens.error().text, "messages"}));
  if (tokens->empty())
    return exchange->answer(to_answer(
        {400, "messages: the chat template renders them to nothing; give one with a content",
         "messages"}));
  if (!request.has_max_tokens) request.generate.max_tokens = room_behind(*tokens, serving->model());
  request.prompts = {{{}, std::move(*tokens)}};
  std::make_shared<ChatCompletion>(context_of(exchange, serving, "chatcmpl-"), std::move(request),
                                   serving->loaded->tools)
      ->start();
}

void Service::embeddings(const std::shared_ptr<Exchange>& exchange) {
  exchange->answer(to_answer({501, "'" + models_.names().front() +
                                       "' generates text; kvhive computes no embeddings: ask a "
                                       "service of a model for them"}));
}

struct ToTokenize {
  bool is_chat = false;
  std::string prompt;
  AddSpecial add_special = AddSpecial::yes;
  bool with_texts = false;
  Fields::Unknown unknown_fields;
};

namespace {

tl::expected<ToTokenize, ApiError> parse_tokenize(const nlohmann::json& body,
                                                  const ServedModel& model) {
  Fields fields(body);
  read_model(fields, model);
  ToTokenize asked;
  asked.is_chat = fields.has("messages");
  if (asked.is_chat) check_messages(fields);
  if (!asked.is_chat && !fields.has("prompt")) fields.fail("prompt", "is missing; give a text");
  if (!fields.boolean("add_special_tokens", !asked.is_chat)) asked.add_special = AddSpecial::no;
  asked.with_texts = fields.boolean("return_token_strs", false);
  if (!asked.is_chat) asked.prompt = fields.text("prompt", "");
  know_template_fields(fields);
  fields.know("tools");
  if (fields.error()) return tl::unexpected(*fields.error());
  asked.unknown_fields = fields.unknown();
  return asked;
}

struct ToDetokenize {
  std::vector<TokenId> tokens;
  Fields::Unknown unknown_fields;
};

tl::expected<ToDetokenize, ApiError> parse_detokenize(const nlohmann::json& body,
                                                      const ServedModel& model) {
  Fields fields(body);
  read_model(fields, model);
  if (!fields.has("tokens")) fields.fail("tokens", "is missing; give a list of token ids");
  ToDetokenize asked{fields.tokens("tokens", std::size_t{1} << 20), {}};
  for (const TokenId token : asked.tokens)
    if (token < 0 || token >= model.tokenizer.vocab_size())
      fields.fail("tokens", fmt::format("has {}; the tokenizer has tokens 0 to {}", token,
                                        model.tokenizer.vocab_size() - 1));
  if (fields.error()) return tl::unexpected(*fields.error());
  asked.unknown_fields = fields.unknown();
  return asked;
}

}  // namespace

void Service::tokenize(const std::shared_ptr<Exchange>& exchange) {
  parse(exchange, parse_tokenize, [this, exchange](const ModelInUsePtr& serving, ToTokenize asked) {
    on_tokenize(exchange, serving, std::move(asked));
  });
}

void Service::on_tokenize(const std::shared_ptr<Exchange>& exchange, const ModelInUsePtr& serving,
                          ToTokenize asked) {
  unknown_fields_.add(asked.unknown_fields);
  const std::string source = asked.is_chat ? "messages" : "prompt";
  const auto answer = [this, exchange, serving, source, add_special = asked.add_special,
                       with_texts = asked.with_texts](std::string text) {
    const std::size_t bytes = text.size(), most = most_text_bytes(serving->model());
    if (bytes > most)
      return exchange->answer(
          to_answer({400,
                     fmt::format("{} has {} bytes; /tokenize takes at most {}: split it", source,
                                 bytes, most),
                     source}));
    in_the_background(
        exchange, bytes,
        [serving, text = std::move(text), add_special, with_texts] {
          return tokenized(serving->model(), text, add_special, with_texts);
        },
        [exchange](HttpAnswer tokens) { exchange->answer(std::move(tokens)); });
  };
  if (asked.is_chat) return render(exchange, *serving, answer);
  answer(std::move(asked.prompt));
}

void Service::detokenize(const std::shared_ptr<Exchange>& exchange) {
  parse(exchange, parse_detokenize,
        [this, exchange](const ModelInUsePtr& serving, ToDetokenize asked) {
          unknown_fields_.add(asked.unknown_fields);
          const std::size_t bytes = asked.tokens.size() * sizeof(TokenId);
          in_the_background(
              exchange, bytes,
              [serving, tokens = std::move(asked.tokens)] {
                return json_answer(
                    {{"prompt", decode(serving->model().tokenizer, tokens, SpecialTokens::kept)}});
              },
              [exchange](HttpAnswer text) { exchange->answer(std::move(text)); });
        });
}

}  // namespace kvhive
