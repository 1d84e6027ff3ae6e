// kvhive serve over real connections, beside a real daemon.

#include <gmock/gmock.h>
#include <signal.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <set>

#include "models/text/utf8.hpp"
#include "tests/serve/metrics/exposition_parser.hpp"
#include "tests/serve/served.hpp"
#include "tests/support/demo_adapter.hpp"
#include "tests/support/temp_directory.hpp"

namespace kvhive::testing {
namespace {

using ::testing::HasSubstr;

std::size_t running_in(const Daemon& daemon) {
  std::size_t running = 0;
  const Json procs = daemon.procs();
  for (const Json& process : procs["processes"])
    running += process.value("running", 0u) + process.value("waiting", 0u);
  return running;
}

class ServiceTest : public ::testing::Test {
 protected:
  const Daemon daemon_;
  const Service service_{daemon_.socket()};
};

TEST_F(ServiceTest, CompletionsAreWhatTheEnginesGenerate) {
  const Progress expected = *daemon_.connect().generate(request_of("In the beginning", 40));
  const HttpReply reply =
      service_.ask(post(kCompletions, completion("In the beginning", 40).dump()));
  ASSERT_EQ(reply.status, 200) << reply.body;
  const Json answer = reply.json();
  EXPECT_EQ(answer["choices"][0]["text"], expected.text);
  EXPECT_EQ(answer["choices"][0]["finish_reason"], "length");
  EXPECT_EQ(answer["usage"]["prompt_tokens"], expected.prompt_tokens);
  EXPECT_EQ(answer["usage"]["completion_tokens"], 40);
}

TEST_F(ServiceTest, AStreamIsTheWholeAnswerInPieces) {
  Json request = completion("In the beginning", 200);
  const std::string whole =
      service_.ask(post(kCompletions, request.dump())).json()["choices"][0]["text"];
  request["stream"] = true;
  request["stream_options"] = {{"include_usage", true}};
  const auto events = service_.ask(post(kCompletions, request.dump())).events();
  ASSERT_GT(events.size(), 3u);
  EXPECT_EQ(text_of(events), whole);
  EXPECT_EQ(events.back(), "[DONE]");
  const Json usage = Json::parse(events[events.size() - 2]);
  EXPECT_TRUE(usage["choices"].empty());
  EXPECT_EQ(usage["usage"]["completion_tokens"], 200);
  EXPECT_EQ(Json::parse(events[events.size() - 3])["choices"][0]["finish_reason"], "length");
}

/// As GET, but for the body: the next answer on the connection stands right behind it.
TEST_F(ServiceTest, HeadIsAnsweredWithoutTheBody) {
  const std::string length =
      "Content-Length: " + std::to_string(service_.ask(get("/version")).body.size());
  for (const char* path : {"/health", "/version", "/v1/models", "/"}) {
    HttpClient client = service_.connect();
    client.send("HEAD " + std::string(path) + " HTTP/1.1\r\nHost: localhost\r\n\r\n" +
                "POST /version HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n");
    ASSERT_TRUE(client.receive_until("405")) << path;
  }
  HttpClient client = service_.connect();
  client.send("HEAD /version HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
  EXPECT_TRUE(client.receive_until(length));
  HttpClient another = service_.connect();
  another.send("HEAD /v1/completions HTTP/1.1\r\nHost: localhost\r\n\r\n");
  EXPECT_TRUE(another.receive_until("405"));
}

TEST_F(ServiceTest, AModelIsToldByItsName) {
  const Json model = service_.ask(get("/v1/models")).json()["data"][0];
  const std::string name = model["id"];
  EXPECT_EQ(service_.ask(get("/v1/models/" + name)).json(), model);
  std::string coded = "/v1/models/";
  for (const char letter : name) {
    char bytes[4];
    std::snprintf(bytes, sizeof bytes, "%%%02x", static_cast<unsigned char>(letter));
    coded += bytes;
  }
  EXPECT_EQ(service_.ask(get(coded)).json(), model);
  const HttpReply other = service_.ask(get("/v1/models/other%"));
  EXPECT_EQ(other.status, 404);
  EXPECT_THAT(other.body, HasSubstr("'other%'"));
  EXPECT_THAT(other.body, HasSubstr(name));
  EXPECT_EQ(service_.ask(get("/v1/models/")).status, 404);
}

TEST(ServedAdapters, AreModelsOfTheirOwn) {
  const DemoAdapter poet(1);
  const Daemon daemon({"--kv-cache-memory-bytes", "16M", "--lora-modules", "poet=" + poet.path()});
  const Service service(daemon.socket());
  const Json models = service.ask(get("/v1/models")).json()["data"];
  ASSERT_EQ(models.size(), 2u);
  EXPECT_EQ(models[1]["id"], "poet");
  EXPECT_EQ(models[1]["parent"], models[0]["id"]);

  GenerateRequest request = request_of("In the beginning", 40);
  const std::string plain = daemon.connect().generate(request)->text;
  request.adapter = "poet";
  const std::string poem = daemon.connect().generate(request)->text;
  ASSERT_NE(poem, plain);
  Json asked = completion("In the beginning", 40);
  asked["model"] = "poet";
  const Json answer = service.ask(post(kCompletions, asked.dump())).json();
  EXPECT_EQ(answer["choices"][0]["text"], poem);
  EXPECT_EQ(answer["model"], "poet");
  asked["model"] = models[0]["id"];
  EXPECT_EQ(service.ask(post(kCompletions, asked.dump())).json()["choices"][0]["text"], plain);
  const MetricsText text(service.ask(get("/metrics?view=service")).body);
  EXPECT_EQ(text.sum("kvhive_serve_adapter_requests_total", {{"adapter", "poet"}}), 1);
  EXPECT_EQ(text.sum("kvhive_serve_adapter_requests", {{"adapter", "poet"}}), 0);
  EXPECT_GT(
      text.sum("vllm:lora_requests_info",
               {{"max_lora", "1"}, {"running_lora_adapters", ""}, {"waiting_lora_adapters", ""}}),
      1.7e9)
      << "the time";
  HttpClient streaming = service.connect();
  Json endless = completion("In the beginning", 3000);
  endless["model"] = "poet";
  endless["stream"] = endless["ignore_eos"] = true;
  streaming.send(post(kCompletions, endless.dump()));
  ASSERT_TRUE(streaming.receive_until("data: "));
  EXPECT_THAT(service.ask(get("/metrics?view=service")).body,
              HasSubstr("vllm:lora_requests_info{max_lora=\"1\",running_lora_adapters=\"poet\","
                        "waiting_lora_adapters=\"\"} "));
  streaming.close();
  asked["model"] = "painter";
  const HttpReply refused = service.ask(post(kCompletions, asked.dump()));
  EXPECT_EQ(refused.status, 404);
  EXPECT_THAT(refused.body, HasSubstr("'poet'"));
}

TEST_F(ServiceTest, BodiesThatAreAnnouncedAndDoNotComeKeepNobodyOut) {
  std::vector<HttpClient> silent;
  for (int i = 0; i < 48; ++i) {
    silent.push_back(service_.connect());
    silent.back().send(
        "POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Length: 8388608\r\n\r\n");
  }
  for (int i = 0; i < 3; ++i)
    EXPECT_EQ(service_.ask(post(kCompletions, completion("In", 1).dump())).status, 200);
}

TEST_F(ServiceTest, TheSecondRequestTellsHowMuchOfItsPromptWasCached) {
  const std::string request = post(kCompletions, completion(passage(), 1).dump());
  service_.ask(request);
  const Json usage = service_.ask(request).json()["usage"];
  EXPECT_GT(usage["prompt_tokens_details"]["cached_tokens"], 64);
}

/// No byte of it is ever shown, also if it comes in pieces.
TEST_F(ServiceTest, AStopTextIsCutOffAndNamed) {
  Json request = completion("In the beginning", 60);
  const std::string whole =
      service_.ask(post(kCompletions, request.dump())).json()["choices"][0]["text"];
  const std::string stop = whole.substr(whole.size() / 2, 7);
  request["stop"] = stop;
  const Json choice = service_.ask(post(kCompletions, request.dump())).json()["choices"][0];
  EXPECT_EQ(choice["text"], whole.substr(0, whole.find(stop)));
  EXPECT_EQ(choice["finish_reason"], "stop");
  EXPECT_EQ(choice["stop_reason"], stop);
  request["stream"] = true;
  EXPECT_EQ(text_of(service_.ask(post(kCompletions, request.dump())).events()), choice["text"]);
}

TEST_F(ServiceTest, AnswersAreNumberedByPromptAndThenByN) {
  const Json request = {{"prompt", {"In the beginning", "And God said"}},
                        {"n", 2},
                        {"max_tokens", 4},
                        {"echo", true},
                        {"seed", 7}};
  const Json answer = service_.ask(post(kCompletions, request.dump())).json();
  ASSERT_EQ(answer["choices"].size(), 4u);
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(answer["choices"][i]["index"], i);
    EXPECT_THAT(answer["choices"][i]["text"].get<std::string>(),
                ::testing::StartsWith(i < 2 ? "In the beginning" : "And God said"));
  }
  EXPECT_EQ(answer["usage"]["completion_tokens"], 16);
}

/// A repeated prompt's tokens stand before the answer's; the first has nothing before it.
TEST_F(ServiceTest, ARepeatedPromptIsScored) {
  Json request = completion("In the beginning", 3);
  request["echo"] = true;
  request["logprobs"] = 2;
  const Json whole = service_.ask(post(kCompletions, request.dump())).json();
  const Json& choice = whole["choices"][0];
  const Json& logprobs = choice["logprobs"];
  const std::size_t prompt = whole["usage"]["prompt_tokens"];
  ASSERT_EQ(logprobs["tokens"].size(), prompt + 3);
  EXPECT_TRUE(logprobs["token_logprobs"][0].is_null() && logprobs["top_logprobs"][0].is_null());
  std::string text;
  for (std::size_t i = 1; i < prompt + 3; ++i) {
    EXPECT_EQ(logprobs["text_offset"][i], text.size());
    text += logprobs["tokens"][i].get<std::string>();
    EXPECT_LT(logprobs["token_logprobs"][i], 0);
    EXPECT_GE(logprobs["top_logprobs"][i].size(), 2u);
  }
  EXPECT_EQ(choice["text"], text);
  // The tokens of the answer are as likely in another request's prompt.
  request["prompt"] = text;
  const Json again = service_.ask(post(kCompletions, request.dump())).json();
  for (std::size_t i = 0; i < prompt + 3; ++i)
    EXPECT_EQ(again["choices"][0]["logprobs"]["top_logprobs"][i], logprobs["top_logprobs"][i]);
  request["stream"] = true;
  request["prompt"] = "In the beginning";
  const auto events = service_.ask(post(kCompletions, request.dump())).events();
  const Json first = Json::parse(events.front())["choices"][0]["logprobs"];
  EXPECT_EQ(first["tokens"][1], "In");
  EXPECT_EQ(first["top_logprobs"][prompt - 1], logprobs["top_logprobs"][prompt - 1]);
}

std::u32string code_points(const std::string& text) {
  std::u32string all;
  for (std::string_view left = text; !left.empty();) {
    const Utf8Head head = utf8_head(left);
    all += head.code_point;
    left.remove_prefix(head.bytes);
  }
  return all;
}

/// In characters, as clients count in their strings; special tokens and the first bytes of a
/// character have no text yet.
TEST_F(ServiceTest, TextOffsetsCountCharactersAlsoWhereTokensArePartsOfThem) {
  Json request = completion("Größe und Maß, naïve café: the Lord", 60);
  request["echo"] = true;
  request["logprobs"] = 0;
  request["temperature"] = 1;
  request["seed"] = 3;
  Json bytes = Json::array();  // tokens of single bytes: most are no whole characters
  for (TokenId token = 128; token < 256; ++token) bytes.push_back(token);
  for (const bool are_parts : {false, true}) {
    if (are_parts) request["allowed_token_ids"] = bytes;
    const Json choice = service_.ask(post(kCompletions, request.dump())).json()["choices"][0];
    const Json& logprobs = choice["logprobs"];
    const std::u32string text = code_points(choice["text"]);
    std::size_t seen = 0, end = 0;
    for (std::size_t i = 0; i < logprobs["tokens"].size(); ++i) {
      const std::size_t offset = logprobs["text_offset"][i];
      EXPECT_GE(offset, seen);
      ASSERT_LE(offset, text.size());
      seen = offset;
      const std::u32string token = code_points(logprobs["tokens"][i]);
      const bool is_whole = token.find(U'\ufffd') == std::u32string::npos;
      EXPECT_TRUE(i == 0 || !is_whole || text.substr(offset, token.size()) == token) << i;
      end = offset + (is_whole ? token.size() : 4);
    }
    EXPECT_GE(end, text.size()) << "the last token is at the end";
  }
}

/// Its JSON is made in another thread, and what the engine sends meanwhile comes behind it.
TEST_F(ServiceTest, ALongScoredPromptIsToldWholeAndInOrder) {
  Json request = completion("", 40);
  std::vector<TokenId> prompt;
  for (TokenId i = 0; i < 1'000; ++i) prompt.push_back(300 + i * 7 % 500);
  request["prompt"] = prompt;
  request["echo"] = true;
  request["logprobs"] = 20;
  request["temperature"] = 0;
  const HttpReply reply = service_.ask(post(kCompletions, request.dump()));
  ASSERT_GT(reply.body.size(), std::size_t{1} << 18) << reply.body;
  const Json whole = reply.json()["choices"][0];
  request["stream"] = true;
  const std::vector<std::string> events = service_.ask(post(kCompletions, request.dump())).events();
  EXPECT_GT(events.front().size(), std::size_t{1} << 18);
  std::string text;
  Json tokens = Json::array(), tops = Json::array();
  for (std::size_t i = 0; i + 1 < events.size(); ++i) {
    const Json choice = Json::parse(events[i])["choices"][0];
    text += choice["text"].get<std::string>();
    for (const Json& token : choice["logprobs"]["tokens"]) tokens.push_back(token);
    for (const Json& top : choice["logprobs"]["top_logprobs"]) tops.push_back(top);
  }
  EXPECT_EQ(text, whole["text"]);
  EXPECT_EQ(tokens, whole["logprobs"]["tokens"]);
  EXPECT_EQ(tops, whole["logprobs"]["top_logprobs"]);
  EXPECT_EQ(events.back(), "[DONE]");
}

/// So many are submitted in several steps of the loop.
TEST_F(ServiceTest, AsManyAnswersAsMayBeAskedForCome) {
  Json request = completion("In the beginning", 2);
  request["n"] = 128;
  const Json answer = service_.ask(post(kCompletions, request.dump())).json();
  ASSERT_EQ(answer["choices"].size(), 128u) << answer;
  for (std::size_t i = 0; i < 128; ++i) EXPECT_EQ(answer["choices"][i]["index"], i);
  EXPECT_EQ(answer["usage"]["completion_tokens"], 256);
}

/// Each number is its own field's.
TEST_F(ServiceTest, ARepeatedPromptsAlternativesAreNotThoseOfItsLogprobs) {
  Json request = completion("In the beginning", 1);
  request["echo"] = true;
  request["logprobs"] = 3;
  request["prompt_logprobs"] = 0;
  const Json choice = service_.ask(post(kCompletions, request.dump())).json()["choices"][0];
  EXPECT_GE(choice["logprobs"]["top_logprobs"][2].size(), 3u);
  EXPECT_EQ(choice["prompt_logprobs"][2].size(), 1u);
}

/// What would fill a channel, or the service's memory, is refused before an engine is asked.
TEST_F(ServiceTest, PromptsThatAreTooLongToScoreAreRefused) {
  Json request = completion("", 1);
  request["prompt"] = std::vector<TokenId>(1 << 20, 7);
  request["prompt_logprobs"] = 20;
  const HttpReply longer = service_.ask(post(kCompletions, request.dump()));
  EXPECT_EQ(longer.status, 400);
  EXPECT_THAT(longer.body, HasSubstr("the prompt has 1048576 tokens; a request may have"));
  EXPECT_EQ(longer.json()["error"]["param"], "prompt");
  request["prompt"] = std::vector<TokenId>(1000, 7);
  request["n"] = 20;
  const HttpReply many = service_.ask(post(kCompletions, request.dump()));
  EXPECT_EQ(many.status, 400);
  EXPECT_THAT(many.body, HasSubstr("420000 log-probabilities of prompts; at most 65536"));
  EXPECT_EQ(many.json()["error"]["param"], "prompt_logprobs");
}

/// As evaluation harnesses ask: the prompt, and nothing behind it.
TEST_F(ServiceTest, ARepeatedPromptMayHaveNoAnswer) {
  Json request = completion("In the beginning", 0);
  request["echo"] = true;
  request["logprobs"] = 1;
  for (const bool is_streamed : {false, true}) {
    request["stream"] = is_streamed;
    request["stream_options"] = is_streamed ? Json{{"include_usage", true}} : Json();
    const HttpReply reply = service_.ask(post(kCompletions, request.dump()));
    const Json first = is_streamed ? Json::parse(reply.events().front()) : reply.json();
    const Json last =
        is_streamed ? Json::parse(reply.events().at(reply.events().size() - 2)) : reply.json();
    EXPECT_EQ(first["choices"][0]["text"], "In the beginning");
    EXPECT_EQ(first["choices"][0]["logprobs"]["tokens"].size(), last["usage"]["prompt_tokens"]);
    EXPECT_EQ(last["usage"]["completion_tokens"], 0);
  }
  request["echo"] = false;
  EXPECT_EQ(service_.ask(post(kCompletions, request.dump())).status, 400);
}

TEST_F(ServiceTest, PromptLogprobsAreToldAsVllmTellsThem) {
  Json request = completion("In the beginning", 1);
  request["prompt_logprobs"] = 1;
  const Json choice = service_.ask(post(kCompletions, request.dump())).json()["choices"][0];
  const Json& told = choice["prompt_logprobs"];
  ASSERT_GE(told.size(), 4u);
  EXPECT_TRUE(told[0].is_null());
  EXPECT_TRUE(choice["logprobs"].is_null());
  for (std::size_t i = 1; i < told.size(); ++i) {
    ASSERT_THAT(told[i].size(), ::testing::AnyOf(1u, 2u));
    bool has_first = false;
    for (const Json& each : told[i]) has_first |= each["rank"] == 1;
    EXPECT_TRUE(has_first) << told[i];
  }
  const Json chat = {{"messages", {{{"role", "user"}, {"content", "In the beginning"}}}},
                     {"max_tokens", 1},
                     {"prompt_logprobs", 0}};
  const Json answer = service_.ask(post("/v1/chat/completions", chat.dump())).json();
  ASSERT_EQ(answer["prompt_logprobs"].size(), answer["usage"]["prompt_tokens"]);
  EXPECT_EQ(answer["prompt_logprobs"][1].size(), 1u);
  request["stream"] = true;
  const HttpReply refused = service_.ask(post(kCompletions, request.dump()));
  EXPECT_EQ(refused.status, 400);
  EXPECT_EQ(refused.json()["error"]["param"], "prompt_logprobs");
}

/// As OpenAI's and vLLM's fields say; in completions and chats, whole and streamed.
TEST_F(ServiceTest, RulesOfTokensChangeTheAnswer) {
  const auto text = [&](const Json& more = Json::object()) {
    Json request = completion("In the beginning", 24);
    request.update(more);
    const HttpReply reply = service_.ask(post(kCompletions, request.dump()));
    EXPECT_EQ(reply.status, 200) << reply.body;
    if (!request.value("stream", false))
      return reply.json()["choices"][0]["text"].get<std::string>();
    std::string all;
    for (const std::string& event : reply.events())
      if (event != "[DONE]") all += Json::parse(event)["choices"][0]["text"].get<std::string>();
    return all;
  };
  const std::string plain = text();
  ASSERT_THAT(plain, HasSubstr(" son"));
  for (const Json& more :
       {Json{{"presence_penalty", 2}}, Json{{"frequency_penalty", 2}},
        Json{{"repetition_penalty", 1.5}}, Json{{"bad_words", {"son"}}},
        Json{{"allowed_token_ids", {300, 301, 302}}}, Json{{"logit_bias", {{"300", 1e9}}}}})
    EXPECT_NE(text(more), plain) << more;
  EXPECT_EQ(text({{"logit_bias", {{"300", -1e9}}}, {"allowed_token_ids", {300}}}),
            text({{"allowed_token_ids", {300}}}))
      << "biases beyond -100..100 count as these";
  for (const bool is_streamed : {false, true}) {
    const Json stop = {{"stop", "e"}, {"stream", is_streamed}};
    EXPECT_EQ(text(stop), plain.substr(0, plain.find('e')));
    Json kept = stop;
    kept["include_stop_str_in_output"] = true;
    EXPECT_EQ(text(kept), plain.substr(0, plain.find('e') + 1));
    kept["min_tokens"] = 10;
    EXPECT_THAT(text(kept), ::testing::AllOf(::testing::EndsWith("e"),
                                             ::testing::StartsWith(plain.substr(0, 12))));
  }
  const Json chat = {{"messages", {{{"role", "user"}, {"content", "In the beginning"}}}},
                     {"max_tokens", 8},
                     {"allowed_token_ids", {300}}};
  const Json answer = service_.ask(post("/v1/chat/completions", chat.dump())).json();
  EXPECT_EQ(answer["usage"]["completion_tokens"], 8);
}

/// They would fill the channels in which others' requests need room.
TEST_F(ServiceTest, ManyAnswersDoNotGetLongListsOfAllowedTokens) {
  Json request = completion("In the beginning", 1);
  for (TokenId token = 0; token < 2048; ++token) request["allowed_token_ids"].push_back(token);
  request["n"] = 128;
  EXPECT_EQ(service_.ask(post(kCompletions, request.dump())).status, 200);
  request["prompt"] = {"In the beginning", "And God said"};
  const HttpReply refused = service_.ask(post(kCompletions, request.dump()));
  EXPECT_EQ(refused.status, 400);
  EXPECT_EQ(refused.json()["error"]["param"], "allowed_token_ids");
  EXPECT_THAT(refused.body, HasSubstr("more than 262144 allowed tokens"));
}

TEST_F(ServiceTest, RulesOfTokensThatCannotBeAreRefusedByTheirField) {
  const std::pair<const char*, Json> wrong[] = {{"presence_penalty", 2.5},
                                                {"frequency_penalty", "much"},
                                                {"repetition_penalty", 0},
                                                {"min_tokens", -1},
                                                {"logit_bias", {{"x", 1}}},
                                                {"logit_bias", {{"5", "high"}}},
                                                {"logit_bias", {5}},
                                                {"allowed_token_ids", Json::array()},
                                                {"allowed_token_ids", {"a"}},
                                                {"bad_words", {""}},
                                                {"bad_words", {std::string(65, 'a')}}};
  for (const auto& [name, value] : wrong) {
    Json request = completion("In the beginning", 3);
    request[name] = value;
    const HttpReply reply = service_.ask(post(kCompletions, request.dump()));
    EXPECT_EQ(reply.status, 400) << name << " " << value;
    EXPECT_EQ(reply.json()["error"]["param"], name);
  }
  for (const auto& [name, value] :
       {std::pair{"min_tokens", Json(4)}, std::pair{"allowed_token_ids", Json{7, 1 << 30}},
        std::pair{"logit_bias", Json{{"1000000", 1}}}}) {
    Json request = completion("In the beginning", 3);
    request[name] = value;
    const HttpReply reply = service_.ask(post(kCompletions, request.dump()));
    EXPECT_EQ(reply.status, 400) << reply.body;
    EXPECT_THAT(reply.body, HasSubstr(name));
    EXPECT_EQ(reply.json()["error"]["param"], name);
  }
}

TEST_F(ServiceTest, LogprobsStandBesideTheirTokens) {
  Json request = completion("In the beginning", 5);
  request["logprobs"] = 3;
  const Json choice = service_.ask(post(kCompletions, request.dump())).json()["choices"][0];
  std::string text;
  for (std::size_t i = 0; i < 5; ++i) {
    EXPECT_EQ(choice["logprobs"]["text_offset"][i], text.size());
    text += choice["logprobs"]["tokens"][i];
    EXPECT_EQ(choice["logprobs"]["top_logprobs"][i].size(), 3u);
  }
  EXPECT_EQ(text, choice["text"]);
}

TEST_F(ServiceTest, TokensOfATextGiveTheTextAgain) {
  const Json tokens =
      service_.ask(post("/tokenize", R"({"prompt": "And God said", "add_special_tokens": false})"))
          .json();
  EXPECT_EQ(tokens["count"], tokens["tokens"].size());
  const Json text =
      service_.ask(post("/detokenize", Json{{"tokens", tokens["tokens"]}}.dump())).json();
  EXPECT_EQ(text["prompt"], "And God said");
}

/// As vLLM does.
TEST_F(ServiceTest, TokensAreToldOfThisModelAndAllOfThem) {
  const Json tokens = service_.ask(post("/tokenize", R"({"prompt": "And"})")).json()["tokens"];
  const Json text = service_.ask(post("/detokenize", Json{{"tokens", tokens}}.dump())).json();
  EXPECT_THAT(text["prompt"].get<std::string>(), ::testing::EndsWith(">And")) << "the first, too";
  for (const char* path : {"/tokenize", "/detokenize"}) {
    const HttpReply reply =
        service_.ask(post(path, Json{{"model", "nope"}, {"prompt", "a"}, {"tokens", {1}}}.dump()));
    EXPECT_EQ(reply.status, 404) << path;
    EXPECT_THAT(reply.body, HasSubstr("'nope' does not exist"));
  }
  for (const int unknown : {99999, -1}) {
    const HttpReply reply =
        service_.ask(post("/detokenize", Json{{"tokens", {300, unknown}}}.dump()));
    EXPECT_EQ(reply.status, 400);
    EXPECT_EQ(reply.json()["error"]["param"], "tokens");
  }
}

TEST_F(ServiceTest, WhatIsWrongIsNamedInOpenAisForm) {
  const struct {
    std::string body;
    int status;
    Json param;
  } cases[] = {
      {"[1", 400, nullptr},
      {R"({"prompt": "a", "temperature": 1e999})", 400, nullptr},
      {"{}", 400, "prompt"},
      {R"({"prompt": ""})", 400, "prompt"},
      {R"({"prompt": [1, "a"]})", 400, "prompt"},
      {R"({"prompt": "a", "model": "gpt"})", 404, "model"},
      {R"({"prompt": "a", "max_tokens": 0})", 400, "max_tokens"},
      {R"({"prompt": "a", "temperature": -1})", 400, "temperature"},
      {R"({"prompt": "a", "top_p": "b"})", 400, "top_p"},
      {R"({"prompt": "a", "logprobs": "b"})", 400, "logprobs"},
      {R"({"prompt": "a", "stop": ["", "b"]})", 400, "stop"},
      {R"({"prompt": "a", "stream_options": {}})", 400, "stream_options"},
      {R"({"prompt": "a", "logit_bias": {"5": "a"}})", 400, "logit_bias"},
      {R"({"prompt": "a", "use_beam_search": "b"})", 400, "use_beam_search"},
      {R"({"prompt": "a", "n": 129})", 400, "n"},
      {R"({"prompt": "a", "cache_salt": ""})", 400, "cache_salt"},
      {R"({"prompt": "a", "cache_salt": 7})", 400, "cache_salt"},
      {R"({"prompt": "a", "cache_salt": "a/b"})", 400, "cache_salt"},
      {R"({"prompt": "a", "cache_salt": "a\u0000"})", 400, "cache_salt"},
      {R"({"prompt": [99999]})", 400, "prompt"},
      {R"({"prompt": "a", "top_p": 0})", 400, "top_p"},
  };
  for (const auto& [body, status, param] : cases) {
    const HttpReply reply = service_.ask(post(kCompletions, body));
    EXPECT_EQ(reply.status, status) << body << reply.body;
    const Json error = reply.json()["error"];
    EXPECT_EQ(error["param"], param) << body;
    EXPECT_EQ(error["code"], status);
    EXPECT_FALSE(error["message"].get<std::string>().empty());
  }
  const HttpReply long_name = service_.ask(
      post(kCompletions, Json{{"prompt", "a"}, {"model", std::string(1 << 20, 'm')}}.dump()));
  EXPECT_EQ(long_name.status, 404);
  EXPECT_LT(long_name.body.size(), 1000u);
  EXPECT_EQ(service_.ask(get("/nowhere")).status, 404);
  EXPECT_EQ(service_.ask(get(kCompletions)).status, 405);
  const HttpReply embeddings = service_.ask(post("/v1/embeddings", "{}"));
  EXPECT_EQ(embeddings.status, 501);
  EXPECT_THAT(embeddings.head, HasSubstr("x-should-retry: false"));
  std::string text;
  for (int i = 0; i < 30; ++i) text += passage();
  const HttpReply refused = service_.ask(post(kCompletions, completion(text, 5).dump()));
  EXPECT_EQ(refused.status, 400) << refused.body;
}

TEST_F(ServiceTest, FieldsThatAreNotKnownChangeNothing) {
  Json request = completion("In the beginning", 3);
  request["user"] = "somebody";
  request["no_such_field"] = 1;
  request["frequency_penalty"] = 0.0;
  request["best_of"] = nullptr;
  EXPECT_EQ(service_.ask(post(kCompletions, request.dump())).status, 200);
}

/// Also within an object, and where tokens are told.
TEST_F(ServiceTest, FieldsThatAreNotKnownAreCounted) {
  const auto counted = [&] {
    return MetricsText(service_.ask(get("/metrics?view=service")).body)
        .sum("kvhive_serve_unknown_fields_total");
  };
  const double before = counted();
  Json request = completion("In the beginning", 1);
  request["stream"] = true;
  request["stream_options"] = {{"includ_usage", true}};
  request["store"] = false;  // known to change nothing
  EXPECT_EQ(service_.ask(post(kCompletions, request.dump())).status, 200);
  EXPECT_EQ(counted(), before + 1);
  (void)service_.ask(post("/tokenize", R"({"prompt": "a", "add_special_tokenz": true})"));
  (void)service_.ask(post("/detokenize", R"({"tokens": [5], "model": "demo", "x": 1})"));
  EXPECT_EQ(counted(), before + 3);
}

TEST_F(ServiceTest, TokenIdsOfAPromptAreToldWhetherItIsATextOrIds) {
  const Json ids =
      service_.ask(post("/tokenize", R"({"prompt": "In the beginning"})")).json()["tokens"];
  for (const Json& prompt : {Json("In the beginning"), ids}) {
    Json request = completion("", 2);
    request["prompt"] = prompt;
    request["return_token_ids"] = true;
    const Json choice = service_.ask(post(kCompletions, request.dump())).json()["choices"][0];
    EXPECT_EQ(choice["prompt_token_ids"], ids) << prompt;
    EXPECT_EQ(choice["token_ids"].size(), 2u);
  }
}

/// With every event the answer's own, as vLLM tells it.
TEST_F(ServiceTest, UsageThatIsToldAllTheTimeIsOfOneAnswer) {
  Json request = completion("In the beginning", 3);
  request["n"] = 2;
  request["stream"] = true;
  request["stream_options"] = {{"continuous_usage_stats", true}};
  std::map<int, int> generated;
  for (const std::string& event : service_.ask(post(kCompletions, request.dump())).events()) {
    if (event == "[DONE]") continue;
    const Json json = Json::parse(event);
    generated[json["choices"][0]["index"]] = json["usage"]["completion_tokens"];
  }
  EXPECT_EQ(generated, (std::map<int, int>{{0, 3}, {1, 3}}));
}

/// A load balancer sends nothing to a service whose requests would wait.
TEST(ServiceHealth, IsBadWhileNoEngineTakesRequests) {
  const Daemon daemon;
  const Service service(daemon.socket());
  const auto health = [&] { return service.ask(get("/health")).status; };
  EXPECT_EQ(health(), 200);
  const Json engines = daemon.status()["engines"];
  signal_process(engines[0]["pid"], SIGSTOP);
  signal_process(engines[1]["pid"], SIGSTOP);
  EXPECT_TRUE(eventually([&] { return health() == 503; }));
  EXPECT_THAT(service.ask(get("/health")).body, HasSubstr("engine 0 is stopped"));
  signal_process(engines[1]["pid"], SIGCONT);
  EXPECT_TRUE(eventually([&] { return health() == 200; })) << "one is enough";
  signal_process(engines[0]["pid"], SIGCONT);
}

TEST_F(ServiceTest, WhatIsAskedWithAnotherMethodSaysWhichAreRight) {
  EXPECT_THAT(service_.ask(post("/v1/models", "{}")).head, HasSubstr("Allow: GET, HEAD\r\n"));
  EXPECT_THAT(service_.ask(get(kCompletions)).head, HasSubstr("Allow: POST\r\n"));
}

TEST_F(ServiceTest, OneConnectionCarriesManyRequests) {
  HttpClient client = service_.connect();
  for (int i = 0; i < 3; ++i) {
    Json request = completion("In the beginning", 3);
    request["stream"] = i == 1;
    client.send(post(kCompletions, request.dump()));
    const auto reply = client.receive();
    ASSERT_TRUE(reply.has_value()) << i;
    EXPECT_EQ(reply->status, 200);
  }
}

/// While it is generated, and while it waits.
/// Engines write faster than anybody reads; what is not read waits in the channels.
TEST_F(ServiceTest, StreamsOfManyAndLongAnswersComeWholeToWhoReadsLate) {
  Json echoed = completion(passage(0, 9'000), 2);
  echoed.update({{"echo", true}, {"n", 128}, {"stream", true}, {"temperature", 1}});
  Json scored = completion("In the beginning", 200);
  scored.update({{"n", 8}, {"logprobs", 20}, {"stream", true}, {"ignore_eos", true}});
  scored["temperature"] = 1;
  for (const auto& [request, answers] : {std::pair(echoed, 128u), {scored, 8u}}) {
    HttpClient client = service_.connect();
    client.send(post(kCompletions, request.dump()));
    ASSERT_TRUE(client.receive_until("data: "));
    ASSERT_TRUE(eventually([&] { return running_in(daemon_) == 0; })) << "engines wait for nobody";
    const auto reply = client.receive();
    ASSERT_TRUE(reply) << answers;
    const auto events = reply->events();
    EXPECT_EQ(events.back(), "[DONE]");
    std::size_t ended = 0;
    for (const std::string& event : events) {
      if (event == "[DONE]") continue;
      const Json json = Json::parse(event);
      for (const Json& choice : json["choices"]) ended += !choice["finish_reason"].is_null();
    }
    EXPECT_EQ(ended, answers);
  }
  EXPECT_EQ(running_in(daemon_), 0u);
}

TEST_F(ServiceTest, ARequestWhoseClientGoesIsEnded) {
  for (const bool is_streamed : {true, false}) {
    HttpClient client = service_.connect();
    Json request = completion("In the beginning", 3000);
    request["ignore_eos"] = true;
    request["stream"] = is_streamed;
    client.send(post(kCompletions, request.dump()));
    if (is_streamed) {
      ASSERT_TRUE(client.receive_until("data: "));
    }
    ASSERT_TRUE(eventually([&] { return running_in(daemon_) == 1; }, kHang));
    client.close();
    EXPECT_TRUE(eventually([&] { return running_in(daemon_) == 0; }, kHang));
  }
}

TEST_F(ServiceTest, AStreamGoesOnWhenItsEngineIsKilled) {
  Json request = completion("In the beginning", 1500);
  request["ignore_eos"] = true;
  const std::string whole =
      service_.ask(post(kCompletions, request.dump())).json()["choices"][0]["text"];
  request["stream"] = true;
  HttpClient client = service_.connect();
  client.send(post(kCompletions, request.dump()));
  ASSERT_TRUE(client.receive_until("data: "));
  const Json engines = daemon_.status()["engines"];
  for (const Json& engine : engines) signal_process(engine["pid"], SIGKILL);
  daemon_.kill_keeper();
  const auto reply = client.receive();
  ASSERT_TRUE(reply.has_value());
  EXPECT_EQ(text_of(reply->events()), whole);
}

TEST_F(ServiceTest, TooLargeABodyIsRefusedByItsLengthAlone) {
  HttpClient client = service_.connect();
  client.send(
      "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99000000\r\n\r\n");
  const auto reply = client.receive();
  ASSERT_TRUE(reply.has_value());
  EXPECT_EQ(reply->status, 413);
  EXPECT_THAT(reply->json()["error"]["message"].get<std::string>(), HasSubstr("--max-body-bytes"));
  EXPECT_TRUE(client.is_ended());
}

TEST_F(ServiceTest, AnErrorHasItsCallersId) {
  const auto refused = [&](const std::string& id) {
    return service_.ask(post(kCompletions, "{}", "X-Request-Id: " + id + "\r\n")).head;
  };
  EXPECT_THAT(refused("mine-7"), HasSubstr("X-Request-Id: mine-7\r\n"));
  EXPECT_THAT(refused("a b"), Not(HasSubstr("X-Request-Id")));
  EXPECT_THAT(service_.ask(post("/nowhere", "", "X-Request-Id: x\r\n")).head,
              HasSubstr("X-Request-Id: x"));
}

TEST_F(ServiceTest, AProxysFormOfATargetIsUnderstoodAndItsHostCounts) {
  const auto status = [&](const std::string& target, const std::string& host) {
    return service_.ask("GET " + target + " HTTP/1.1\r\nHost: " + host + "\r\n\r\n").status;
  };
  EXPECT_EQ(status("http://localhost/version", "localhost"), 200);
  EXPECT_EQ(status("http://localhost", "localhost"), 200) << "the page";
  EXPECT_EQ(status("http://evil.example/version", "localhost"), 403);
  EXPECT_EQ(status("/version", "evil.example"), 403);
  EXPECT_EQ(status("/http://localhost/version", "localhost"), 404);
}

TEST_F(ServiceTest, WhatIsCodedOtherwiseIsNotTakenForTheBody) {
  const std::string body = completion("In", 1).dump();
  const auto status = [&](const std::string& headers) {
    return service_
        .ask("POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n" + headers + "\r\n\r\n" + body)
        .status;
  };
  const std::string length = "Content-Length: " + std::to_string(body.size());
  EXPECT_EQ(status("Content-Encoding: identity\r\n" + length), 200);
  EXPECT_EQ(status("Content-Encoding: gzip\r\n" + length), 415);
  EXPECT_EQ(status("Transfer-Encoding: gzip, chunked"), 501);
  // HTTP/1.0 knows no "100 Continue".
  HttpClient old = service_.connect();
  old.send("POST /v1/completions HTTP/1.0\r\nHost: localhost\r\nExpect: 100-continue\r\n" + length +
           "\r\n\r\n" + body);
  EXPECT_EQ(old.receive()->status, 200);
}

TEST_F(ServiceTest, WhatIsNoHttpIsRefused) {
  for (const std::string& nonsense :
       {std::string("\x16\x03\x01\x02"), std::string("GET / HTTP/9.9\r\n\r\n"),
        "GET / HTTP/1.1\r\n" + std::string(20000, 'a'),
        std::string("POST / HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n"),
        std::string(
            "POST / HTTP/1.1\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n")}) {
    HttpClient client = service_.connect();
    client.send(nonsense + "\r\n\r\n");
    const auto reply = client.receive();
    if (reply) {
      EXPECT_GE(reply->status, 400) << nonsense.substr(0, 60);
    }
    EXPECT_TRUE(client.is_ended());
  }
  EXPECT_EQ(service_.ask(get("/health")).status, 200);
}

TEST(ServiceLimits, HalfRequestsTakeNobodysPlace) {
  const Daemon daemon;
  const Service service(daemon.socket(), {"--max-connections", "32"});
  std::vector<HttpClient> halves;
  for (int i = 0; i < 300; ++i) {
    halves.push_back(service.connect());
    halves.back().send("POST /v1/completions HTTP/1.1\r\nContent-Length: 100\r\n\r\n{");
    if (i % 50 != 0) continue;
    EXPECT_EQ(service.ask(post(kCompletions, completion("In the beginning", 3).dump())).status,
              200);
  }
}

/// Fewer descriptors than there are connections.
TEST(ServiceLimits, DescriptorsThatRunOutCostOnlyWhoIsSilent) {
  const Daemon daemon;
  const Service service(daemon.socket(), {}, 330);
  std::vector<HttpClient> silent;
  for (int i = 0; i < 200; ++i) silent.push_back(service.connect());
  for (int i = 0; i < 3; ++i)
    EXPECT_EQ(service.ask(post(kCompletions, completion("In the beginning", 3).dump())).status,
              200);
}

TEST(ServiceLimits, AKeyMustBeGivenBelowV1) {
  const Daemon daemon;
  const std::string keys = daemon.directory() + "/keys";
  std::ofstream(keys) << "# ours\nsecret-1\nsecret-2\n";
  const Service service(daemon.socket(), {"--api-key-file", keys});
  const std::string body = completion("In the beginning", 3).dump();
  EXPECT_EQ(service.ask(post(kCompletions, body)).status, 401);
  EXPECT_EQ(service.ask(post(kCompletions, body, "Authorization: Bearer secret-3\r\n")).status,
            401);
  EXPECT_EQ(service.ask(post(kCompletions, body, "Authorization: Bearer secret-2\r\n")).status,
            200);
  EXPECT_EQ(service.ask(get("/health")).status, 200);
}

/// It has not sent its body yet.
TEST(ServiceLimits, WhoHasNoKeyIsToldBeforeALongBody) {
  const TempDirectory directory;
  directory.write("keys", "key\n");
  const Daemon daemon;
  const Service service(daemon.socket(), {"--api-key-file", (directory.path() / "keys").string()});
  for (const std::string more : {"Content-Length: 8000000\r\n", "Transfer-Encoding: chunked\r\n",
                                 "Content-Length: 10\r\nExpect: 100-continue\r\n"}) {
    HttpClient client = service.connect();
    client.send(std::string("POST ") + kCompletions + " HTTP/1.1\r\nHost: localhost\r\n" + more +
                "\r\n");
    const auto refused = client.receive();
    ASSERT_TRUE(refused) << more;
    EXPECT_EQ(refused->status, 401) << more;
    EXPECT_TRUE(client.is_ended());
  }
  EXPECT_EQ(service.ask(post(kCompletions, completion("a", 1).dump())).status, 401);
}

/// The field, its value, and what to send instead.
TEST_F(ServiceTest, ErrorsNameFieldValueAndRemedy) {
  const struct {
    std::string request, field, value, remedy;
  } cases[] = {
      {post(kCompletions, R"({"prompt": {"a": 1}})"), "prompt", R"({\"a\":1})", "use a text"},
      {post(kCompletions, R"({"prompt": "a", "stream": true, "stream_options": 7})"),
       "stream_options", "is 7", "use an object"},
      {post(kCompletions,
            R"({"prompt": "a", "stream": true, "stream_options": {"include_usage": 7}})"),
       "stream_options.include_usage", "is 7", "use true or false"},
      {post(kCompletions, R"({"prompt": ["a", "b"], "n": 129})"), "n", "is 129",
       "use a whole number"},
      {post(kCompletions, R"({"prompt": ["a", "b", "c"], "n": 128})"), "n", "is 128",
       "ask for fewer"},
      {post(kCompletions, "[7]"), "", "the body (3 bytes)", "send one"},
      {post(kCompletions, R"({"prompt": "a",})"), "", "line 1, column 16", "send one"},
      {post(kCompletions, ""), "", "unexpected end of input", "send one"},
      {post("/v1/chat/completions", R"({"messages": "a"})"), "messages", R"(is \"a\")",
       "give a list"},
      {post("/v1/chat/completions", R"({"messages": [{"role": "user"}], "tool_choice": 7})"),
       "tool_choice", "is 7", "use "},
      {get("/v1/modells"), "", "'/v1/modells'", "/v1/models"},
      {post("/v1/models", "{}"), "", "'POST'", "use GET"},
  };
  for (const auto& [request, field, value, remedy] : cases) {
    const HttpReply reply = service_.ask(request);
    EXPECT_GE(reply.status, 400) << request;
    const Json param = reply.json()["error"]["param"];
    EXPECT_EQ(param, field.empty() ? Json() : Json(field)) << reply.body;
    EXPECT_THAT(reply.body, HasSubstr(value));
    EXPECT_THAT(reply.body, HasSubstr(remedy));
  }
}

/// It is work, and as much as an answer: else strangers take the time of those who have a key.
TEST(ServiceLimits, AKeyMustBeGivenToHaveTokensToldToo) {
  const Daemon daemon;
  const std::string keys = daemon.directory() + "/keys";
  std::ofstream(keys) << "secret\n";
  const Service service(daemon.socket(), {"--api-key-file", keys});
  const std::pair<const char*, const char*> asked[] = {{"/tokenize", R"({"prompt": "a"})"},
                                                       {"/detokenize", R"({"tokens": [5]})"}};
  for (const auto& [path, body] : asked) {
    const HttpReply refused = service.ask(post(path, body));
    EXPECT_EQ(refused.status, 401) << path;
    EXPECT_THAT(refused.body, HasSubstr("Authorization: Bearer KEY"));
    const std::string counted = service.ask(get("/metrics?view=service")).body;
    EXPECT_THAT(counted, HasSubstr("handler=\"" + std::string(path) + "\"")) << "not as none";
    EXPECT_EQ(service.ask(post(path, body, "Authorization: Bearer secret\r\n")).status, 200);
  }
}

TEST_F(ServiceTest, ATextOfWhichNoTokensAreToldIsNamedWithItsBound) {
  const std::string text(std::size_t{(1 << 20) + 1}, 'a');
  const HttpReply refused = service_.ask(post("/tokenize", Json{{"prompt", text}}.dump()));
  EXPECT_EQ(refused.status, 400);
  EXPECT_EQ(refused.json()["error"]["param"], "prompt");
  EXPECT_THAT(refused.body, HasSubstr("prompt has 1048577 bytes; /tokenize takes at most 1048576"));
}

class Keys : public ::testing::Test {
 protected:
  std::string file(const std::string& text) const {
    const std::string path = daemon_.directory() + "/keys";
    std::ofstream(path) << text;
    chmod(path.c_str(), 0600);
    return path;
  }
  static HttpReply ask(const Service& service, const std::string& key) {
    return service.ask(post(kCompletions, completion(passage(), 1).dump(),
                            "Authorization: Bearer " + key + "\r\n"));
  }
  static int cached(const HttpReply& reply) {
    return reply.json()["usage"]["prompt_tokens_details"]["cached_tokens"];
  }
  const Daemon daemon_{{"--kv-cache-memory-bytes", "32M", "--domains", "red=4242;blue=4243"}};
};

TEST_F(Keys, EachRunsInItsDomainAndSharesBlocksThereOnly) {
  const Service service(
      daemon_.socket(),
      {"--api-key-file", file("# ours\n\nplain\nred-1 red\nred-2\tred \r\nblue-1 blue\n")});
  EXPECT_EQ(cached(ask(service, "red-1")), 0);
  EXPECT_GT(cached(ask(service, "red-2")), 64);
  EXPECT_EQ(cached(ask(service, "blue-1")), 0);
  EXPECT_EQ(cached(ask(service, "plain")), 0);
  std::set<std::string> domains;
  const Json clients = daemon_.status()["clients"];
  for (const Json& client : clients) domains.insert(client["domain"]);
  EXPECT_EQ(domains.size(), 3u) << clients;
  EXPECT_TRUE(domains.contains("red") && domains.contains("blue"));
}

TEST_F(Keys, ADomainThatTheDaemonRefusesIsAnErrorOfItsKeyAlone) {
  const Service service(daemon_.socket(), {"--api-key-file", file("a amber\nb blue\n")});
  const HttpReply refused = ask(service, "a");
  EXPECT_EQ(refused.status, 403) << refused.body;
  EXPECT_EQ(refused.json()["error"]["type"], "PermissionDeniedError");
  EXPECT_THAT(refused.json()["error"]["message"].get<std::string>(),
              HasSubstr("domain 'amber' is refused"));
  EXPECT_EQ(ask(service, "b").status, 200);
  EXPECT_EQ(service.ask(get("/health")).status, 200);
}

TEST_F(Keys, AFileThatIsWrongIsRefusedByFileAndLineWithoutItsKeys) {
  const auto refused = [this](const std::string& text) {
    const CommandResult result =
        daemon_.cli({"serve", "--port", "0", "--api-key-file", file(text)});
    EXPECT_NE(result.exit_code, 0) << text;
    EXPECT_THAT(result.err, ::testing::Not(HasSubstr("secret")));
    return result.err;
  };
  EXPECT_THAT(refused("a red\nsecret red blue\n"), HasSubstr("keys:2: there is more than"));
  EXPECT_THAT(refused("secret r/d\n"), HasSubstr("keys:1: 'r/d' is no name of a domain"));
  EXPECT_THAT(refused("secret\n\nsecret red\n"), HasSubstr("keys:3: this key is in line 1"));
  EXPECT_THAT(refused("# none\n"), HasSubstr("has no key"));
  const std::string open = file("secret\n");
  chmod(open.c_str(), 0622);
  EXPECT_THAT(daemon_.cli({"serve", "--port", "0", "--api-key-file", open}).err,
              HasSubstr("may write to"));
}

int cached_in(const HttpReply& reply) {
  EXPECT_EQ(reply.status, 200) << reply.body;
  return reply.json()["usage"]["prompt_tokens_details"]["cached_tokens"];
}
std::string salted_completion(const Json& salt, const std::string& headers = "") {
  Json request = completion(passage(0, 1'000), 1);
  request["cache_salt"] = salt;
  return post(kCompletions, request.dump(), headers);
}

TEST_F(ServiceTest, PromptsWithDifferentCacheSaltsShareNothing) {
  EXPECT_EQ(cached_in(service_.ask(salted_completion("alice"))), 0);
  EXPECT_EQ(cached_in(service_.ask(salted_completion(std::string(128, 'b')))), 0);
  EXPECT_EQ(cached_in(service_.ask(salted_completion(nullptr))), 0);
  EXPECT_GT(cached_in(service_.ask(salted_completion("alice"))), 64);
  EXPECT_GT(cached_in(service_.ask(salted_completion(nullptr))), 64);
  const HttpReply refused = service_.ask(salted_completion(std::string(129, 'b')));
  EXPECT_EQ(refused.status, 400);
  EXPECT_THAT(refused.body, HasSubstr("cache_salt has 129 bytes; use a text of 1..128"));
}

/// What is not taken is refused, and never left out: the caller relies on it.
TEST(ServiceLimits, CacheSaltsAreTakenFromWhomTheOperatorTrusts) {
  const Daemon daemon;
  const auto ask = [&](const std::vector<std::string>& flags, const char* host,
                       const std::string& headers = "") {
    std::vector<std::string> all = {"--host", host};
    all.insert(all.end(), flags.begin(), flags.end());
    const Service service(daemon.socket(), all);
    return service.ask(salted_completion("alice", headers));
  };
  EXPECT_EQ(ask({}, "127.0.0.1").status, 200);
  EXPECT_EQ(ask({"--cache-salts", "all"}, "127.0.0.1").status, 200);
  const HttpReply refused = ask({"--cache-salts", "none"}, "127.0.0.1");
  EXPECT_EQ(refused.status, 403);
  EXPECT_EQ(refused.json()["error"]["param"], "cache_salt");
  EXPECT_THAT(refused.body, HasSubstr("--cache-salts"));
  EXPECT_EQ(ask({}, "::").status, 200) << "a mapped address is one of this machine, too";
  const std::string keys = daemon.directory() + "/keys";
  std::ofstream(keys) << "secret\n";
  EXPECT_EQ(ask({"--api-key-file", keys}, "127.0.0.1").status, 401);
  EXPECT_EQ(ask({"--api-key-file", keys}, "127.0.0.1", "Authorization: Bearer secret\r\n").status,
            200);
}

/// Nobody between may take a stream for dead whose engine is stopped.
TEST(ServiceLimits, ASilentStreamIsKeptAlive) {
  const Daemon daemon;
  const Service service(daemon.socket(), {"--sse-keep-alive-interval", "1"});
  const Json engines = daemon.status()["engines"];
  for (const Json& engine : engines) signal_process(engine["pid"], SIGSTOP);
  HttpClient client = service.connect();
  Json request = completion("In the beginning", 5);
  request["stream"] = true;
  client.send(post(kCompletions, request.dump(), "X-Request-Id: mine-7\r\n"));
  EXPECT_TRUE(client.receive_until(": keep-alive\n\n"));
  for (const Json& engine : engines) signal_process(engine["pid"], SIGCONT);
  const auto reply = client.receive();
  ASSERT_TRUE(reply.has_value());
  EXPECT_FALSE(text_of(reply->events()).empty());
  EXPECT_THAT(reply->head, HasSubstr("X-Request-Id: cmpl-mine-7"));
  EXPECT_EQ(Json::parse(reply->events().front())["id"], "cmpl-mine-7");
}

/// A stream that was cut says so, and the next request finds the next daemon.
TEST(ServiceLimits, TheDaemonMayEndAndComeBack) {
  Daemon first;
  const std::string socket = first.socket();
  const Service service(socket);
  HttpClient client = service.connect();
  Json request = completion("In the beginning", 3000);
  request["ignore_eos"] = true;
  request["stream"] = true;
  client.send(post(kCompletions, request.dump()));
  ASSERT_TRUE(client.receive_until("data: "));
  first.kill();
  const auto reply = client.receive();
  ASSERT_TRUE(reply.has_value()) << "the stream ended without a word";
  ASSERT_GE(reply->events().size(), 2u);
  EXPECT_EQ(Json::parse(reply->events().end()[-2])["error"]["code"], 503);
  EXPECT_EQ(reply->events().back(), "[DONE]");
  const HttpReply refused = service.ask(post(kCompletions, completion("a", 3).dump()));
  EXPECT_EQ(refused.status, 503);
  EXPECT_THAT(refused.head, HasSubstr("Retry-After: "));
  EXPECT_EQ(service.ask(get("/health")).status, 503);
  const pid_t next =
      spawn(program("kvhived"), {"--model", kDemoModel, "--socket", socket, "--threads", "1",
                                 "--kv-cache-memory-bytes", "8M", "--log-level", "error"});
  EXPECT_TRUE(eventually([&] { return service.ask(get("/health")).status == 200; }, kHang));
  EXPECT_EQ(service.ask(post(kCompletions, completion("In the beginning", 3).dump())).status, 200);
  kill_daemon(next);
}

/// More streams than one channel has slots.
TEST(ServiceLimits, ManyStreamsShareChannels) {
  const Daemon daemon;
  const Service service(daemon.socket());
  Json request = completion("In the beginning", 8);
  request["stream"] = true;
  std::vector<HttpClient> clients;
  for (int i = 0; i < 600; ++i) {
    clients.push_back(service.connect());
    clients.back().send(post(kCompletions, request.dump()));
  }
  std::string text;
  for (HttpClient& client : clients) {
    const auto reply = client.receive();
    ASSERT_TRUE(reply.has_value());
    if (text.empty()) text = text_of(reply->events());
    EXPECT_EQ(text_of(reply->events()), text);
  }
  EXPECT_GE(daemon.status()["clients"].size(), 2u);
  EXPECT_TRUE(daemon.fsck_is_clean());
}

TEST(ServiceLimits, ItEndsWhenItIsAskedTo) {
  const Daemon daemon;
  Service service(daemon.socket());
  HttpClient client = service.connect();
  Json request = completion("In the beginning", 3000);
  request["stream"] = true;
  client.send(post(kCompletions, request.dump()));
  ASSERT_TRUE(client.receive_until("data: "));
  EXPECT_EQ(service.stop(), 0);
  EXPECT_TRUE(client.is_ended());
  EXPECT_TRUE(eventually([&] { return daemon.status()["clients"].empty(); }, kHang));
}

}  // namespace
}  // namespace kvhive::testing
