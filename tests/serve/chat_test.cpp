// Chat over real connections, with a model that always says the same (speaking_model.py).

#include <fcntl.h>
#include <gmock/gmock.h>
#include <signal.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "base/check.hpp"
#include "tests/serve/metrics/exposition_parser.hpp"
#include "tests/serve/served.hpp"
#include "tests/support/temp_directory.hpp"

namespace kvhive::testing {
namespace {

using ::testing::HasSubstr;

constexpr const char* kChat = "/v1/chat/completions";

/// What the model says behind <|say|>.
constexpr const char* kSaid = "Hello from the hive.";

/// Written once for all tests; a form of calls each.
std::string speaking_model(const std::string& form) {
  static const TempDirectory directory;
  const std::string path = (directory.path() / form).string();
  if (!std::filesystem::exists(path)) {
    const pid_t pid = spawn("/usr/bin/python3", {KVHIVE_SPEAKING_MODEL, path, form});
    int status = 0;
    KV_CHECK(waitpid(pid, &status, 0) == pid && status == 0);
  }
  return path;
}

class ChatTest : public ::testing::Test {
 protected:
  explicit ChatTest(const std::string& form = "hermes", std::vector<std::string> flags = {})
      : daemon_(
            {"--model", speaking_model(form), "--engines", "2", "--kv-cache-memory-bytes", "8M"}),
        service_(daemon_.socket(), std::move(flags)) {}

  HttpReply ask(const Json& request) const { return service_.ask(post(kChat, request.dump())); }

  const Daemon daemon_;
  const Service service_;
};
class MistralChatTest : public ChatTest {
 protected:
  MistralChatTest() : ChatTest("mistral") {}
};

Json chat(const std::string& content) {
  return {{"messages", {{{"role", "user"}, {"content", content}}}}};
}

Json chat_with_tools(const std::string& content) {
  Json request = chat(content);
  request["tools"] = {{{"type", "function"},
                       {"function", {{"name", "get_weather"}, {"parameters", Json::object()}}}}};
  return request;
}

/// What the events of a stream say together.
struct Streamed {
  std::string role, content, finish_reason;
  std::vector<Json> calls;
};
Streamed streamed(const std::vector<std::string>& events) {
  Streamed all;
  for (const std::string& event : events) {
    if (event == "[DONE]") continue;
    const Json json = Json::parse(event);
    EXPECT_EQ(json["object"], "chat.completion.chunk");
    const Json& choice = json["choices"][0];
    const Json& delta = choice["delta"];
    all.role += delta.value("role", "");
    if (delta.contains("content") && !delta["content"].is_null()) all.content += delta["content"];
    for (const Json& call : delta.value("tool_calls", Json::array())) all.calls.push_back(call);
    if (!choice["finish_reason"].is_null()) all.finish_reason = choice["finish_reason"];
  }
  return all;
}

TEST_F(ChatTest, AnswersMessages) {
  const HttpReply reply = ask(chat("Good morning"));
  ASSERT_EQ(reply.status, 200) << reply.body;
  const Json answer = reply.json();
  EXPECT_EQ(answer["object"], "chat.completion");
  const Json& choice = answer["choices"][0];
  EXPECT_EQ(choice["message"]["role"], "assistant");
  EXPECT_EQ(choice["message"]["content"], kSaid);
  EXPECT_EQ(choice["finish_reason"], "stop");
  const Json tokens = service_.ask(post("/tokenize", chat("Good morning").dump())).json();
  EXPECT_EQ(answer["usage"]["prompt_tokens"], tokens["count"]);
  const Json text =
      service_.ask(post("/detokenize", Json{{"tokens", tokens["tokens"]}}.dump())).json();
  EXPECT_THAT(text["prompt"].get<std::string>(), HasSubstr("Good morning"));
}

TEST_F(ChatTest, MessagesWithDifferentCacheSaltsShareNothing) {
  std::string text;
  for (int i = 0; i < 60; ++i) text += "Good morning. ";
  const auto cached = [&](const Json& salt) {
    Json request = chat(text);
    request["cache_salt"] = salt;
    const HttpReply reply = ask(request);
    EXPECT_EQ(reply.status, 200) << reply.body;
    return reply.json()["usage"]["prompt_tokens_details"]["cached_tokens"].get<int>();
  };
  EXPECT_EQ(cached("alice"), 0);
  EXPECT_EQ(cached("bob"), 0);
  EXPECT_GT(cached("alice"), 0);
  EXPECT_EQ(cached(nullptr), 0);
}

TEST_F(ChatTest, WhatOnlyTheTemplateReadsIsNoUnknownField) {
  Json request = chat("Good morning");
  request["chat_template_kwargs"] = {{"enable_thinking", false}};
  request["add_generation_prompt"] = true;
  request["documents"] = nullptr;
  request["reasoning_effort"] = "low";
  request["user"] = "somebody";
  EXPECT_EQ(ask(request).status, 200);
  const auto counted = [this] {
    return MetricsText(service_.ask(get("/metrics?view=service")).body)
        .sum("kvhive_serve_unknown_fields_total");
  };
  EXPECT_EQ(counted(), 0);
  request["max_token"] = 1;
  EXPECT_EQ(ask(request).status, 200);
  EXPECT_EQ(counted(), 1);
}

TEST_F(ChatTest, StreamsTheAnswerInPieces) {
  Json request = chat("Good morning");
  request["stream"] = true;
  request["stream_options"] = {{"include_usage", true}};
  auto events = ask(request).events();
  // A short answer may be there before the service looks: one piece, the usage, the end.
  ASSERT_GE(events.size(), 3u);
  EXPECT_EQ(events.back(), "[DONE]");
  const Json usage = Json::parse(events[events.size() - 2]);
  EXPECT_TRUE(usage["choices"].empty());
  EXPECT_GE(usage["usage"]["completion_tokens"], 4);
  events.erase(events.end() - 2);
  const Streamed all = streamed(events);
  EXPECT_EQ(all.role, "assistant");
  EXPECT_EQ(all.content, kSaid);
  EXPECT_EQ(all.finish_reason, "stop");

  request["ignore_eos"] = true;
  request["max_tokens"] = 1500;  // computed for longer than the service may be kept waiting
  EXPECT_GT(ask(request).events().size(), 3u);
}

/// An answer as it is asked for in the models' tests of tools: two calls behind a text.
void expect_two_calls(const Json& calls, const std::string& prefix) {
  ASSERT_EQ(calls.size(), 2u) << calls;
  for (const Json& call : calls) {
    EXPECT_EQ(call["function"]["name"], "get_weather");
    EXPECT_EQ(call["type"], "function");
    EXPECT_THAT(call["id"].get<std::string>(), ::testing::StartsWith(prefix));
  }
  EXPECT_EQ(Json::parse(calls[0]["function"]["arguments"].get<std::string>())["city"], "Paris");
  EXPECT_EQ(Json::parse(calls[1]["function"]["arguments"].get<std::string>())["city"], "Rôme");
  EXPECT_NE(calls[0]["id"], calls[1]["id"]);
}

TEST_F(ChatTest, CallsOfToolsAreToldAsSuch) {
  const HttpReply reply = ask(chat_with_tools("How is the weather?"));
  ASSERT_EQ(reply.status, 200) << reply.body;
  const Json answer = reply.json();
  const Json& choice = answer["choices"][0];
  EXPECT_EQ(choice["finish_reason"], "tool_calls");
  EXPECT_EQ(choice["message"]["content"], "One moment.\n");
  expect_two_calls(choice["message"]["tool_calls"], "call_");
}

TEST_F(ChatTest, CallsOfToolsAreStreamedWhole) {
  Json request = chat_with_tools("How is the weather?");
  request["stream"] = true;
  const Streamed all = streamed(ask(request).events());
  EXPECT_EQ(all.finish_reason, "tool_calls");
  EXPECT_EQ(all.content, "One moment.\n");
  expect_two_calls(all.calls, "call_");
  EXPECT_EQ(all.calls[0]["index"], 0);
  EXPECT_EQ(all.calls[1]["index"], 1);
}

TEST_F(ChatTest, ACallerMayWantNoCalls) {
  Json request = chat_with_tools("How is the weather?");
  request["tool_choice"] = "none";
  EXPECT_THAT(ask(request).json()["choices"][0]["message"]["content"].get<std::string>(),
              HasSubstr("<tool_call>"));
  request["tool_choice"] = "auto";
  request["parallel_tool_calls"] = false;
  EXPECT_EQ(ask(request).json()["choices"][0]["message"]["tool_calls"].size(), 1u);
}

/// The calls come back with their results, and the model answers.
TEST_F(ChatTest, ResultsOfToolsGoIntoThePrompt) {
  Json request = chat_with_tools("How is the weather?");
  const Json message = ask(request).json()["choices"][0]["message"];
  request["messages"].push_back(message);
  for (const Json& call : message["tool_calls"])
    request["messages"].push_back(
        {{"role", "tool"}, {"tool_call_id", call["id"]}, {"content", "Rain."}});
  const HttpReply reply = ask(request);
  ASSERT_EQ(reply.status, 200) << reply.body;
  EXPECT_EQ(reply.json()["choices"][0]["message"]["content"], kSaid);
}

TEST_F(MistralChatTest, CallsBeginWithASpecialToken) {
  Json request = chat_with_tools("How is the weather?");
  const Json answer = ask(request).json();
  const Json& choice = answer["choices"][0];
  EXPECT_EQ(choice["finish_reason"], "tool_calls");
  EXPECT_EQ(choice["message"]["content"], "One moment.");
  expect_two_calls(choice["message"]["tool_calls"], "");
  EXPECT_EQ(choice["message"]["tool_calls"][0]["id"].get<std::string>().size(), 9u);
  request["stream"] = true;
  const Streamed all = streamed(ask(request).events());
  EXPECT_EQ(all.content, "One moment.");
  expect_two_calls(all.calls, "");
}

TEST_F(ChatTest, LogprobsNameBytes) {
  Json request = chat("Good morning");
  request["logprobs"] = true;
  request["top_logprobs"] = 2;
  const Json answer = ask(request).json();
  const Json& content = answer["choices"][0]["logprobs"]["content"];
  std::string said;
  for (const Json& entry : content) {
    EXPECT_EQ(entry["top_logprobs"].size(), 2u);
    for (const int byte : entry["bytes"]) said += static_cast<char>(byte);
  }
  EXPECT_EQ(said.substr(0, std::string(kSaid).size()), kSaid);
}

TEST_F(ChatTest, WhatIsWrongIsNamed) {
  const struct {
    std::string fields;
    int status;
    std::string param;
  } cases[] = {
      {R"("messages": [])", 400, "messages"},
      {R"("messages": "a")", 400, "messages"},
      {R"("messages": [{"role": "villain", "content": "a"}])", 400, "messages"},
      {R"("messages": [{"role": "user", "content": [{"type": "image_url"}]}])", 400, "messages"},
      {R"("messages": [{"role": "user"}], "chat_template": "a")", 400, "chat_template"},
      {R"("messages": [{"role": "user"}], "chat_template_kwargs": 7)", 400, "chat_template_kwargs"},
      {R"("messages": [{"role": "user"}], "add_generation_prompt": 7)", 400,
       "add_generation_prompt"},
      {R"("messages": [{"role": "user"}], "tools": [{"type": "function"}])", 400, "tools"},
      {R"("messages": [{"role": "user"}], "tool_choice": "required")", 400, "tool_choice"},
      {R"("messages": [{"role": "user"}], "continue_final_message": true, "add_generation_prompt": true)",
       400, "continue_final_message"},
      {R"("messages": [{"role": "user"}], "tool_choice": "auto")", 400, "tool_choice"},
      {R"("messages": [{"role": "user"}], "top_logprobs": 2)", 400, "top_logprobs"},
      {R"("messages": [{"role": "user"}], "max_completion_tokens": 0)", 400,
       "max_completion_tokens"},
  };
  for (const auto& [fields, status, param] : cases) {
    const HttpReply reply = service_.ask(post(kChat, "{" + fields + "}"));
    EXPECT_EQ(reply.status, status) << fields << reply.body;
    EXPECT_EQ(reply.json()["error"]["param"], param) << fields;
  }
}

/// The one whose template does not end takes seconds, and is told why.
TEST_F(ChatTest, AHostileTemplateCostsItsOwnRequestOnly) {
  HttpClient hostile = service_.connect();
  Json request = chat("spin");
  request["chat_template_kwargs"] = {{"spin", true}};
  hostile.send(post(kChat, request.dump()));
  EXPECT_EQ(ask(chat("Good morning")).json()["choices"][0]["message"]["content"], kSaid);
  EXPECT_EQ(hostile.receive()->status, 400);
}

TEST_F(ChatTest, ManyChatsAtOnce) {
  std::vector<HttpClient> clients;
  for (int i = 0; i < 100; ++i) {
    clients.push_back(service_.connect());
    clients.back().send(post(kChat, chat("Number " + std::to_string(i)).dump()));
    if (i % 10 == 9) clients[static_cast<std::size_t>(i - 5)].close();  // while it is rendered
  }
  for (std::size_t i = 0; i < clients.size(); ++i) {
    if (i % 10 == 4) continue;
    const auto reply = clients[i].receive();
    ASSERT_TRUE(reply.has_value()) << i;
    EXPECT_EQ(reply->json()["choices"][0]["message"]["content"], kSaid) << i;
  }
}

/// The first child of the service: what renders short requests.
pid_t renderer_of(pid_t service) {
  pid_t pid = 0;
  std::ifstream("/proc/" + std::to_string(service) + "/task/" + std::to_string(service) +
                "/children") >>
      pid;
  return pid;
}

/// It has an answer for nobody then, and says nothing: a traceback would look like a defect.
TEST(ServedTemplates, ARenderThatOutlivesItsServiceEndsInSilence) {
  const TempDirectory directory;
  directory.write("slow.jinja",
                  "{% for i in range(2000) %}{% for j in range(1000) %}{% endfor %}{% endfor %}a");
  const Daemon daemon;
  int err[2];
  KV_CHECK(pipe2(err, O_CLOEXEC) == 0);
  const UniqueFd out(err[0]);
  UniqueFd in(err[1]);
  Service service(daemon.socket(), {"--chat-template", (directory.path() / "slow.jinja").string()},
                  0, in.get());
  in = UniqueFd();
  const pid_t renderer = renderer_of(service.pid());
  ASSERT_NE(renderer, 0);
  ASSERT_TRUE(eventually([&] { return state_of(renderer) == 'S'; }, kHang)) << "it has started";
  HttpClient client = service.connect();
  client.send(post(kChat, chat("Good morning").dump()));
  ASSERT_TRUE(eventually([&] { return state_of(renderer) == 'R'; }, kHang));
  signal_process(service.pid(), SIGKILL);
  std::string said;  // to the end: nobody has the pipe any more
  char bytes[4096];
  for (ssize_t got; (got = read(out.get(), bytes, sizeof bytes)) > 0;)
    said.append(bytes, static_cast<std::size_t>(got));
  EXPECT_THAT(said, ::testing::Not(HasSubstr("Traceback")));
}

TEST_F(ChatTest, AnotherTemplateMayBeGiven) {
  const TempDirectory directory;
  directory.write("plain.jinja", "{% for m in messages %}{{ m.content }}{% endfor %}<|say|>");
  const Service other(daemon_.socket(),
                      {"--chat-template", (directory.path() / "plain.jinja").string()});
  const Json tokens = other.ask(post("/tokenize", chat("abc").dump())).json();
  EXPECT_EQ(tokens["count"], 4);
}

}  // namespace
}  // namespace kvhive::testing
