// Which of the daemon's models a service serves: the next daemon's when there is another, and of
// several the one that a request names.

#include <gmock/gmock.h>

#include <filesystem>

#include "tests/serve/served.hpp"
#include "tests/support/demo_adapter.hpp"
#include "tests/support/temp_directory.hpp"
#include "tests/tools/small_model.hpp"

namespace kvhive::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

Json completion_of(const std::string& model, const std::string& prompt, std::uint32_t max_tokens) {
  Json request = completion(prompt, max_tokens);
  request["model"] = model;
  return request;
}

std::vector<std::string> with_memory(std::vector<std::string> flags) {
  flags.insert(flags.end(), {"--kv-cache-memory-bytes", "8M"});
  return flags;
}

/// kvhived on a socket that another had before it.
class NextDaemon {
 public:
  NextDaemon(const std::string& socket, std::vector<std::string> flags) {
    flags.insert(flags.end(), {"--socket", socket, "--threads", "1", "--log-level", "error"});
    pid_ = spawn(program("kvhived"), with_memory(flags));
  }
  NextDaemon(const NextDaemon&) = delete;
  NextDaemon& operator=(const NextDaemon&) = delete;
  ~NextDaemon() { kill_daemon(pid_); }

 private:
  pid_t pid_;
};

/// Kills the daemon, and waits until the last of its processes has left the socket.
void end_of(Daemon& daemon, const Service& service) {
  daemon.kill();
  ASSERT_TRUE(eventually([&] { return service.ask(get("/health")).status == 503; }, kHang));
}

/// A copy of the demo model under another name.
std::string copy_of_demo(const TempDirectory& directory, const std::string& name) {
  const auto copy = directory.path() / name;
  std::filesystem::copy(kDemoModel, copy);
  return copy.string();
}

/// Its name, its adapters and how long a request may be are the next daemon's; nobody has to ask
/// for an answer first.
TEST(ServedModels, TheNextDaemonsModelIsServed) {
  const DemoAdapter poet(1);
  const TempDirectory directory;
  const std::string other = copy_of_demo(directory, "other");
  Daemon first;
  const std::string socket = first.socket();
  const Service service(socket);
  const auto models = [&] { return service.ask(get("/v1/models")).json()["data"]; };
  ASSERT_EQ(models().size(), 1u);
  EXPECT_EQ(models()[0]["id"], "demo");
  EXPECT_EQ(service.ask(post(kCompletions, completion("In", 1).dump())).status, 200);
  HttpClient streaming = service.connect();
  Json request = completion("In the beginning", 3000);
  request["ignore_eos"] = request["stream"] = true;
  streaming.send(post(kCompletions, request.dump()));
  ASSERT_TRUE(streaming.receive_until("data: "));
  end_of(first, service);
  const NextDaemon next(socket, {"--model", other, "--max-model-len", "512", "--lora-modules",
                                 "poet=" + poet.path()});
  EXPECT_EQ(Json::parse(streaming.receive()->events().end()[-2])["error"]["code"], 503);
  EXPECT_TRUE(eventually(
      [&] {
        const HttpReply reply = service.ask(get("/v1/models"));
        return reply.status == 200 && reply.json()["data"][0]["id"] == "other";
      },
      kHang));
  EXPECT_EQ(models()[0]["max_model_len"], 512);
  EXPECT_EQ(models()[0]["root"], other);
  ASSERT_EQ(models().size(), 2u);
  EXPECT_EQ(models()[1]["id"], "poet");
  request = completion("In the beginning", 5);
  request["model"] = "poet";
  EXPECT_EQ(service.ask(post(kCompletions, request.dump())).json()["model"], "poet");
  request["model"] = "demo";
  EXPECT_EQ(service.ask(post(kCompletions, request.dump())).status, 404);
  EXPECT_THAT(service.ask(get("/metrics?view=host")).body, HasSubstr("model_name=\"other\""));
}

/// Tokens of one model mean something else to another: nothing is computed until the service has
/// the new one's tokenizer, however long that takes.
TEST(ServedModels, AModelThatCannotBeLoadedIsToldAndTriedAgain) {
  const TempDirectory directory;
  const std::string other = copy_of_demo(directory, "other");
  Daemon first;
  const std::string socket = first.socket();
  const Service service(socket);
  EXPECT_EQ(service.ask(post(kCompletions, completion("In", 1).dump())).status, 200);
  end_of(first, service);
  const std::string chat_template = other + "/chat_template.jinja";
  std::filesystem::create_directory(chat_template);  // engines do not read it
  const NextDaemon next(socket, {"--model", other});
  const auto is_told = [&] {
    const HttpReply reply = service.ask(get("/health"));
    return reply.status == 503 && reply.body.find("cannot load") != std::string::npos;
  };
  ASSERT_TRUE(eventually(is_told, kHang));
  for (const std::string& request :
       {get("/v1/models"), post(kCompletions, completion("In", 1).dump()),
        post("/tokenize", R"({"prompt": "a"})")}) {
    const HttpReply refused = service.ask(request);
    EXPECT_EQ(refused.status, 503) << request;
    EXPECT_THAT(refused.body, HasSubstr("'other'"));
    EXPECT_THAT(refused.body, HasSubstr("chat_template.jinja"));
    EXPECT_THAT(refused.head, HasSubstr("Retry-After: "));
  }
  EXPECT_EQ(service.ask(get("/version")).status, 200) << "what needs no model goes on";
  std::filesystem::remove(chat_template);
  EXPECT_TRUE(eventually([&] { return service.ask(get("/health")).status == 200; }, kHang));
  EXPECT_EQ(service.ask(post(kCompletions, completion("In", 1).dump())).json()["model"], "other");
}

/// The flags that name the demo model and half of it.
std::vector<std::string> both_with(const SmallModel& half, std::vector<std::string> more) {
  more.insert(more.end(),
              {"--model", std::string("demo=") + kDemoModel, "--model", "half=" + half.path()});
  return more;
}

/// A daemon with the demo model and half of it, and a service of both.
class SeveralServed : public ::testing::Test {
 protected:
  /// What the daemon's engines say, asked without the service.
  std::string said_by(const std::string& model) const {
    ClientOptions options = client_options(daemon_.socket());
    options.model = model;
    auto client = Client::connect(options);
    KV_CHECK(client.has_value(), client.error().text);
    return client->generate(request_of("In the beginning", 30))->text;
  }
  std::vector<std::string> names() const {
    std::vector<std::string> all;
    const Json models = service_.ask(get("/v1/models")).json();
    for (const Json& model : models["data"]) all.push_back(model["id"]);
    return all;
  }

  const SmallModel half_;
  Daemon daemon_{with_memory(both_with(half_, {}))};
  const Service service_{daemon_.socket()};
};

TEST_F(SeveralServed, ARequestHasTheModelThatItNames) {
  EXPECT_THAT(names(), ElementsAre("demo", "half"));
  ASSERT_NE(said_by("demo"), said_by("half"));
  for (const std::string& model : std::vector<std::string>{"demo", "half", "demo"}) {
    const HttpReply reply =
        service_.ask(post(kCompletions, completion_of(model, "In the beginning", 30).dump()));
    ASSERT_EQ(reply.status, 200) << reply.body;
    EXPECT_EQ(reply.json()["choices"][0]["text"], said_by(model));
    EXPECT_EQ(reply.json()["model"], model);
  }
  const Json unnamed =
      service_.ask(post(kCompletions, completion("In the beginning", 30).dump())).json();
  EXPECT_EQ(unnamed["model"], "demo");
  EXPECT_EQ(unnamed["choices"][0]["text"], said_by("demo"));
}

TEST_F(SeveralServed, AlsoInALongBodyInStreamsAndInTokens) {
  Json request = completion_of("half", "In the beginning", 30);
  request["user"] = std::string(100'000, 'x');  // so long that another thread reads it
  EXPECT_EQ(service_.ask(post(kCompletions, request.dump())).json()["choices"][0]["text"],
            said_by("half"));
  request = completion_of("half", "In the beginning", 30);
  request["stream"] = true;
  EXPECT_EQ(text_of(service_.ask(post(kCompletions, request.dump())).events()), said_by("half"));
  const Json tokens =
      service_.ask(post("/tokenize", R"({"model": "half", "prompt": "In the beginning"})")).json();
  EXPECT_GT(tokens["count"], 0);
  EXPECT_EQ(service_.ask(get("/v1/models/half")).json()["root"], half_.path());
}

TEST_F(SeveralServed, AModelThatIsNotThereIsToldWhichThereAre) {
  for (const std::string& path : {kCompletions, std::string("/tokenize")}) {
    const HttpReply refused = service_.ask(post(path, completion_of("quarter", "In", 1).dump()));
    EXPECT_EQ(refused.status, 404);
    EXPECT_EQ(refused.json()["error"]["param"], "model");
    EXPECT_EQ(refused.json()["error"]["message"],
              "model 'quarter' does not exist; this service has 'demo', 'half'");
  }
  EXPECT_EQ(service_.ask(post(kCompletions, R"({"model": 7, "prompt": "In"})")).status, 400);
}

TEST_F(SeveralServed, SomeOfThemIfTheOperatorSaysSo) {
  const Service one(daemon_.socket(), {"--serve-model", "half"});
  EXPECT_EQ(one.ask(get("/v1/models")).json()["data"].size(), 1u);
  const Json answer = one.ask(post(kCompletions, completion("In the beginning", 30).dump())).json();
  EXPECT_EQ(answer["model"], "half");
  EXPECT_EQ(answer["choices"][0]["text"], said_by("half"));
  EXPECT_EQ(one.ask(post(kCompletions, completion_of("demo", "In", 1).dump())).status, 404);
  const Service turned(daemon_.socket(), {"--serve-model", "half", "demo"});
  EXPECT_EQ(turned.ask(post(kCompletions, completion("In", 1).dump())).json()["model"], "half");
}

TEST_F(SeveralServed, WhatIsSaidOfOneModelIsRefusedOfTwo) {
  const std::vector<std::pair<std::string, std::string>> said = {
      {"--model", half_.path()},
      {"--served-model-name", "gpt"},
      {"--max-model-len", "100"},
      {"--chat-template", half_.path() + "/tokenizer_config.json"},
      {"--tool-call-parser", "hermes"}};
  for (const auto& [flag, value] : said) {
    const CommandResult refused =
        run("kvhive", {"serve", "--socket", daemon_.socket(), "--port", "0", flag, value});
    EXPECT_NE(refused.exit_code, 0) << flag;
    EXPECT_THAT(refused.err, HasSubstr(flag + " is of one model, and demo, half"));
    EXPECT_THAT(refused.err, HasSubstr("--serve-model"));
  }
  const std::vector<std::pair<std::vector<std::string>, std::string>> named = {
      {{"half", "half"}, "half, half: a model is named twice"},
      {{"half", "third"}, "'third' is not served by the daemon; there are: demo, half"}};
  for (const auto& [models, why] : named) {
    std::vector<std::string> flags = {"serve",  "--socket", daemon_.socket(),
                                      "--port", "0",        "--serve-model"};
    flags.insert(flags.end(), models.begin(), models.end());
    EXPECT_THAT(run("kvhive", flags).err, HasSubstr("--serve-model: " + why));
  }
  const Service renamed(daemon_.socket(), {"--serve-model", "half", "--served-model-name", "gpt"});
  EXPECT_EQ(renamed.ask(post(kCompletions, completion_of("gpt", "In the beginning", 30).dump()))
                .json()["choices"][0]["text"],
            said_by("half"));
}

/// The next daemon has one of them only: its requests go on, the other's are told why not.
TEST_F(SeveralServed, OneThatIsNoLongerThereHoldsUpNoOther) {
  for (const std::string& model : std::vector<std::string>{"demo", "half"})
    EXPECT_EQ(service_.ask(post(kCompletions, completion_of(model, "In", 1).dump())).status, 200);
  const std::string socket = daemon_.socket();
  end_of(daemon_, service_);
  const NextDaemon next(socket, {"--model", std::string("demo=") + kDemoModel});
  ASSERT_TRUE(eventually([&] { return service_.ask(get("/health")).status == 200; }, kHang));
  ASSERT_TRUE(eventually([&] { return names() == std::vector<std::string>{"demo"}; }, kHang));
  EXPECT_EQ(service_.ask(post(kCompletions, completion_of("demo", "In", 1).dump())).status, 200);
  const HttpReply refused = service_.ask(post(kCompletions, completion_of("half", "In", 1).dump()));
  EXPECT_EQ(refused.status, 503);
  EXPECT_THAT(refused.body, HasSubstr("'half' is not served by the daemon; there are: demo"));
  EXPECT_THAT(refused.head, HasSubstr("Retry-After: "));
  EXPECT_EQ(service_.ask(get("/v1/models/half")).status, 503) << "there is none, but may be";
  EXPECT_EQ(service_.ask(get("/v1/models/third")).status, 404);
}

/// The one that is left has its own name, also where it is not the service's first.
TEST_F(SeveralServed, WhatIsToldOfAnEngineNamesItsModel) {
  const auto names_both = [&] {
    const std::string text = service_.ask(get("/metrics")).body;
    return text.find("model_name=\"demo\"") != std::string::npos &&
           text.find("model_name=\"half\"") != std::string::npos;
  };
  EXPECT_TRUE(eventually(names_both, kHang));
  const std::string socket = daemon_.socket();
  end_of(daemon_, service_);
  const NextDaemon next(socket, {"--model", "half=" + half_.path()});
  ASSERT_TRUE(eventually([&] { return service_.ask(get("/health")).status == 200; }, kHang));
  const auto names_half = [&] {
    return service_.ask(get("/metrics")).body.find("model_name=\"half\"") != std::string::npos;
  };
  EXPECT_TRUE(eventually(names_half, kHang));
  EXPECT_EQ(service_.ask(get("/metrics")).body.find("model_name=\"demo\""), std::string::npos);
  const auto page_names_half = [&] {
    const Json hive = service_.ask(get("/hive.json")).json();
    return hive.contains("engines") && !hive["engines"].empty() &&
           hive["engines"][0]["model"] == "half";
  };
  EXPECT_TRUE(eventually(page_names_half, kHang));
}

/// The same with an adapter for each, which is a model of its own to requests: "poet" of the demo
/// model and "clerk" of its half.
class SeveralServedWithAdapters : public ::testing::Test {
 protected:
  std::vector<std::string> flags_with(const std::string& of_demo,
                                      const std::string& of_half) const {
    return both_with(half_, {"--lora-modules", "demo:" + of_demo + "=" + of_demo_.path(),
                             "--lora-modules", "half:" + of_half + "=" + of_half_.path()});
  }
  std::string answer(const Service& service, const std::string& model) const {
    const HttpReply reply =
        service.ask(post(kCompletions, completion_of(model, "In the beginning", 30).dump()));
    EXPECT_EQ(reply.status, 200) << reply.body;
    const Json answer = reply.json();
    EXPECT_EQ(answer["model"], model);
    return answer["choices"][0]["text"];
  }

  const SmallModel half_;
  const DemoAdapter of_demo_{1}, of_half_{2, 2};
  Daemon daemon_{with_memory(flags_with("poet", "clerk"))};
  const Service service_{daemon_.socket()};
};

TEST_F(SeveralServedWithAdapters, ARequestHasTheModelWhoseAdapterItNames) {
  const auto said_with = [&](const std::string& model, const std::string& adapter) {
    ClientOptions options = client_options(daemon_.socket());
    options.model = model;
    GenerateRequest request = request_of("In the beginning", 30);
    request.adapter = adapter;
    return Client::connect(options)->generate(request)->text;
  };
  const Json models = service_.ask(get("/v1/models")).json()["data"];
  std::vector<std::pair<std::string, Json>> listed;
  for (const Json& model : models) listed.emplace_back(model["id"], model["parent"]);
  EXPECT_THAT(listed, ElementsAre(std::pair("demo", Json()), std::pair("poet", Json("demo")),
                                  std::pair("half", Json()), std::pair("clerk", Json("half"))));
  EXPECT_EQ(service_.ask(get("/v1/models/clerk")).json()["root"], half_.path());
  EXPECT_EQ(answer(service_, "poet"), said_with("demo", "poet"));
  EXPECT_EQ(answer(service_, "clerk"), said_with("half", "clerk"));
  EXPECT_EQ(answer(service_, "half"), said_with("half", ""));
  EXPECT_NE(answer(service_, "clerk"), answer(service_, "half"));
  EXPECT_NE(answer(service_, "poet"), answer(service_, "demo"));
  EXPECT_EQ(service_.ask(post(kCompletions, completion_of("lawyer", "In", 1).dump()))
                .json()["error"]["message"],
            "model 'lawyer' does not exist; this service has 'demo', 'poet', 'half', 'clerk'");
  const std::string metrics = service_.ask(get("/metrics?view=service")).body;
  EXPECT_THAT(metrics, HasSubstr("kvhive_serve_adapter_requests_total{adapter=\"clerk\"} 2\n"));
  EXPECT_THAT(metrics, HasSubstr("kvhive_serve_adapter_requests_total{adapter=\"poet\"} 2\n"));
}

TEST_F(SeveralServedWithAdapters, AServiceOfOneModelHasItsAdaptersAlone) {
  const Service one(daemon_.socket(), {"--serve-model", "half"});
  EXPECT_EQ(one.ask(get("/v1/models")).json()["data"].size(), 2u);
  EXPECT_EQ(answer(one, "clerk"), answer(service_, "clerk"));
  EXPECT_EQ(
      one.ask(post(kCompletions, completion_of("poet", "In", 1).dump())).json()["error"]["message"],
      "model 'poet' does not exist; this service has 'half', 'clerk'");
  // A name that another model's adapter has is free here, one of its own is not.
  const Service renamed(daemon_.socket(), {"--serve-model", "half", "--served-model-name", "poet"});
  EXPECT_EQ(answer(renamed, "poet"), answer(service_, "half"));
  EXPECT_THAT(run("kvhive", {"serve", "--socket", daemon_.socket(), "--port", "0", "--serve-model",
                             "half", "--served-model-name", "clerk"})
                  .err,
              HasSubstr("served-model-name 'clerk' is the name of an adapter"));
}

/// Also where a name goes from one model to the other.
TEST_F(SeveralServedWithAdapters, TheNextDaemonsAdaptersAreServed) {
  const std::string of_half = answer(service_, "clerk"), socket = daemon_.socket();
  EXPECT_NE(answer(service_, "poet"), of_half);
  end_of(daemon_, service_);
  const NextDaemon next(socket, flags_with("sage", "poet"));
  const auto lists = [&] {
    std::vector<std::string> all;
    const Json models = service_.ask(get("/v1/models")).json();
    if (models.contains("data"))
      for (const Json& model : models["data"]) all.push_back(model["id"]);
    return all;
  };
  ASSERT_TRUE(eventually(
      [&] {
        return lists() == std::vector<std::string>{"demo", "sage", "half", "poet"};
      },
      kHang));
  EXPECT_EQ(answer(service_, "poet"), of_half);
  EXPECT_EQ(service_.ask(post(kCompletions, completion_of("clerk", "In", 1).dump())).status, 404);
  EXPECT_THAT(service_.ask(get("/metrics?view=service")).body,
              HasSubstr("kvhive_serve_adapter_requests_total{adapter=\"poet\"} 2\n"))
      << "one of each model";
}

}  // namespace
}  // namespace kvhive::testing
