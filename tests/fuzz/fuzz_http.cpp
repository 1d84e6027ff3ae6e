// What a caller sends to kvhive serve, as far as no daemon is needed: the connection's own code
// over a socket pair, and what reads headers and bodies. A request is answered once, and what is
// accepted is in its bounds.

#include <sys/socket.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>

#include "base/check.hpp"
#include "base/json_file.hpp"
#include "base/unique_fd.hpp"
#include "ipc/channel/channel_layout.hpp"
#include "tests/fuzz/fuzz_input.hpp"
#include "tools/serve/access/api_keys.hpp"
#include "tools/serve/access/hosts.hpp"
#include "tools/serve/access/origins.hpp"
#include "tools/serve/chat/chat_request.hpp"
#include "tools/serve/http/session.hpp"
#include "tools/serve/openai/completion_request.hpp"
#include "tools/serve/openai/unknown_fields.hpp"
#include "tools/serve/trace/traceparent.hpp"

namespace kvhive::testing {
namespace {

const ServedModel& model() {
  static const ServedModel model{
      .name = "m", .directory = {}, .max_model_len = 4096, .tokenizer = {}, .sampling = {}};
  return model;
}

void check_answer_request(const AnswerRequest& request) {
  const GenerateRequest& generate = request.generate;
  KV_CHECK(request.n >= 1 && request.prompts.size() * request.n <= kMostAnswers);
  KV_CHECK(generate.max_tokens >= 1 && generate.max_tokens <= model().max_model_len);
  KV_CHECK(generate.top_p >= 0 && generate.top_p <= 1 && generate.temperature >= 0);
  KV_CHECK(generate.stop.size() <= kMostStopStrings);
  for (const std::string& stop : generate.stop)
    KV_CHECK(!stop.empty() && stop.size() <= kStopBytes);
  KV_CHECK(generate.stop_token_ids.size() <= kMostStopTokens);
  KV_CHECK(generate.prompt_logprobs.value_or(0) <= kMostLogprobs);
  KV_CHECK(generate.logprobs <= kMostLogprobs && generate.cache_salt.size() <= kSaltBytes);
  for (const std::string& name : request.unknown_fields.names)
    for (const char letter : UnknownFields::shown(name)) KV_CHECK(letter >= ' ' && letter <= '~');
}

HttpAnswer answer_to(const HttpRequest& request) {
  static const ApiKeys keys = ApiKeys::parse("key domain\n", "keys").value();
  (void)keys.find(request.header("Authorization"));
  (void)parse_traceparent(request.header("traceparent"));
  static const Hosts hosts = Hosts::parse({"a", "*.b"}).value();
  if (const auto refused = hosts.refusal_of(request)) {
    KV_CHECK(refused->status == 403 && nlohmann::json::accept(refused->body));
    return *refused;
  }
  static const Origins origins = Origins::parse({"http://a", "*"}).value();
  HttpHeaders headers = origins.headers_for(request);
  if (const auto asked = origins.answer_to_question(request))
    headers.insert(headers.end(), asked->headers.begin(), asked->headers.end());
  for (const auto& [name, value] : headers)
    KV_CHECK(value.find_first_of("\r\n") == std::string::npos, name);
  const auto body = parse_json_object(request.body);
  if (!body) return to_answer({400, "no JSON object"});
  const auto completion = parse_completion(*body, model(), PromptEmbeds::taken);
  if (completion) {
    check_answer_request(*completion);
    for (const auto& prompt : completion->prompts)
      KV_CHECK((!prompt.text.empty() + !prompt.tokens.empty() + (prompt.rows != nullptr)) == 1);
  }
  const auto chat = parse_chat(*body, model());
  if (chat) check_answer_request(*chat);
  if (completion || chat) return {200, "{}", "application/json", {}};
  KV_CHECK(nlohmann::json::accept(to_json_text(chat.error())));
  return to_answer(completion.error());
}

/// Half of the answers are streams.
void answer(Exchange& exchange) {
  const HttpAnswer answer = answer_to(exchange.request());
  if (exchange.request().query.empty()) return exchange.answer(answer);
  exchange.begin_events({});
  exchange.send_event("{}");
  exchange.keep_alive();
  exchange.end();
}

}  // namespace
}  // namespace kvhive::testing

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace kvhive;
  testing::FuzzInput input(data, size);
  const auto cut = input.take<std::uint16_t>();
  const std::string bytes = input.rest();
  int ends[2];
  KV_CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) == 0);
  UniqueFd client(ends[0]);
  boost::asio::io_context loop(1);
  HttpConnections connections;
  connections.limits.header_bytes = 2048;
  connections.limits.body_bytes = 16384;
  connections.answer = [](const std::shared_ptr<Exchange>& exchange) {
    testing::answer(*exchange);
  };
  connections.refuse = [](Exchange& exchange, int status, const std::string& text) {
    exchange.answer(to_answer({status, text}));
  };
  {
    boost::asio::ip::tcp::socket socket(loop);
    socket.assign(boost::asio::ip::tcp::v4(), ends[1]);
    std::make_shared<Session>(std::move(socket), connections)->start();
  }
  char answers[65536];
  const auto run = [&] {  // all that can be done now, and whatever is answered is read
    do {
      loop.restart();
      loop.poll();
    } while (recv(client.get(), answers, sizeof answers, 0) > 0);
  };
  const std::string_view all = bytes;
  const std::size_t first = std::min<std::size_t>(cut, all.size());
  for (const std::string_view piece : {all.substr(0, first), all.substr(first)}) {
    for (std::string_view left = piece; !left.empty();) {
      const ssize_t sent = send(client.get(), left.data(), left.size(), MSG_NOSIGNAL);
      if (sent > 0) left.remove_prefix(static_cast<std::size_t>(sent));
      run();
      if (sent < 0 && connections.count() == 0) break;  // it was refused
    }
    run();
  }
  shutdown(client.get(), SHUT_WR);
  run();
  KV_CHECK(connections.count() == 0, "a connection whose client has gone stays");
  KV_CHECK(connections.reserved == 0, connections.reserved);
  return 0;
}
