// Daemons with several models over one pool: a client names its model, tokens are those of the
// model alone, and blocks go to whoever needs them.

#include <gmock/gmock.h>

#include "tests/support/signal_process.hpp"
#include "tests/tools/engine_death.hpp"
#include "tests/tools/several_models.hpp"

namespace kvhive::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::SizeIs;

/// What several models are asked, and what each of them answers alone.
struct AnswersAlone {
  const NamedModels& models;
  Requests requests;
  std::map<std::string, Tokens> answers = alone(models, requests);
};

/// Everything is cached the second time, with another keeper; then with other engines.
///
/// \param hits  blocks that are found then, at least
void expect_the_same_whoever_dies(const Daemon& daemon, const AnswersAlone& expected,
                                  std::uint64_t hits) {
  EXPECT_EQ(together(daemon, expected.models, expected.requests), expected.answers);
  hits += daemon.stat()["hit_blocks"].get<std::uint64_t>();
  daemon.kill_keeper();
  EXPECT_EQ(together(daemon, expected.models, expected.requests), expected.answers);
  EXPECT_GT(daemon.stat()["hit_blocks"].get<std::uint64_t>(), hits);
  daemon.signal_engines(SIGKILL);
  EXPECT_EQ(together(daemon, expected.models, expected.requests), expected.answers);
  EXPECT_TRUE(daemon.fsck_is_clean());
}

/// In a pool that is too small, by recompute and swap: blocks are evicted, requests preempted.
///
/// \param flags  the size of the pool, its tokens per block
void expect_the_same_when_preempted(const AnswersAlone& expected,
                                    const std::vector<std::string>& flags) {
  for (const char* mode : {"recompute", "swap"}) {
    SCOPED_TRACE(std::string("preemption by ") + mode);
    std::vector<std::string> all = {
        "--swap-space",   "4M", "--preemption-mode", mode, "--max-num-batched-tokens", "64",
        "--max-num-seqs", "12"};
    all.insert(all.end(), flags.begin(), flags.end());
    const Daemon daemon(expected.models.flags(all));
    EXPECT_EQ(together(daemon, expected.models, expected.requests), expected.answers);
    EXPECT_EQ(together(daemon, expected.models, expected.requests), expected.answers);
    for (const CounterName moved : {CounterName("evicted_blocks"), CounterName("demoted_blocks"),
                                    CounterName("promoted_blocks")})
      EXPECT_GT(counted(daemon.pool(), moved), 0u);
    EXPECT_GT(
        counted(daemon.pool(), mode == std::string("swap") ? CounterName("preemptions_swap")
                                                           : CounterName("preemptions_recompute")),
        0u);
    EXPECT_TRUE(daemon.fsck_is_clean());
  }
}

TEST(SeveralModels, SayWhatEachSaysAlone) {
  const Models models;
  const AnswersAlone expected{models, requests()};
  {
    const Daemon daemon(models.flags({"--engines", "2", "--kv-cache-memory-bytes", "16M"}));
    expect_the_same_whoever_dies(daemon, expected, 3 * 12 * 4);
    EXPECT_EQ(model_row(daemon, "small")["block_size"], 32);
    EXPECT_EQ(model_row(daemon, "hybrid")["groups"], 2);
  }
  expect_the_same_when_preempted(expected,
                                 {"--num-gpu-blocks-override", "100", "--max-model-len", "512"});
}

/// Of two of them with adapters; the third has none.
TEST(SeveralModels, WithAdaptersSayWhatEachSaysAlone) {
  const AdaptersOfTwo adapters;
  const Models models = adapters.models();
  const AnswersAlone expected{models, requests()};
  {
    const Daemon daemon(models.flags({"--engines", "2", "--kv-cache-memory-bytes", "24M"}));
    expect_the_same_whoever_dies(daemon, expected, 3 * 12 * 4);

    const Json status = daemon.status();
    std::map<std::string, Json> told;
    for (const Json& model : status["models"]) told[model["name"]] = model["adapters"];
    EXPECT_EQ(told["demo"], Json({"lawyer", "poet"}));
    EXPECT_EQ(told["hybrid"], Json::array());
    EXPECT_EQ(told["small"], Json({"clerk"}));
    // Each computes: without an adapter the same request has other tokens.
    for (const auto& [model, row] : {std::pair{"demo", 1u}, {"demo", 2u}, {"small", 1u}})
      EXPECT_NE(ids(*connect_to(daemon, model).generate(requests()[row])),
                expected.answers.at(model)[row]);
  }
  expect_the_same_when_preempted(expected,
                                 {"--num-gpu-blocks-override", "100", "--max-model-len", "512"});
}

/// Latent attention, windows, chunks and experts beside each other.
TEST(SeveralModels, OfAllKindsSayWhatEachSaysAlone) {
  const GoldenModels models({"deepseek_v2", "gemma3", "llama4", "qwen3_moe"});
  const AnswersAlone expected{models, golden_requests()};
  // Else a block, which has 16 tokens of the latent model, has a whole prompt of the others.
  const std::vector<std::string> small_blocks = {
      "--model-options",
      "deepseek_v2=block-size:8;gemma3=block-size:16;llama4=block-size:8;"
      "qwen3_moe=block-size:4"};
  std::vector<std::string> flags = {"--engines", "2", "--kv-cache-memory-bytes", "64M"};
  flags.insert(flags.end(), small_blocks.begin(), small_blocks.end());
  {
    const Daemon daemon(models.flags(flags));
    expect_the_same_whoever_dies(daemon, expected, 4 * 24);
    EXPECT_EQ(model_row(daemon, "deepseek_v2")["block_size"], 8);
    EXPECT_GT(model_row(daemon, "llama4")["groups"], 1);
  }
  flags = {"--num-gpu-blocks-override", "80", "--max-model-len", "128"};
  flags.insert(flags.end(), small_blocks.begin(), small_blocks.end());
  expect_the_same_when_preempted(expected, flags);
}

TEST(SeveralModels, AnAdapterOfAnotherModelIsRefusedInALineThatNamesThisOnes) {
  const AdaptersOfTwo adapters;
  const Models models = adapters.models();
  const Daemon daemon(models.flags({"--kv-cache-memory-bytes", "8M"}));
  const auto refused = [&](const std::string& model, const std::string& adapter) {
    GenerateRequest request = request_of("In the beginning", 4);
    request.adapter = adapter;
    return connect_to(daemon, model).generate(request)->error.text;
  };
  EXPECT_EQ(refused("demo", "clerk"),
            "adapter 'clerk': model 'demo' has none of this name; it has lawyer, poet; if it is "
            "another model's, connect to that one");
  EXPECT_EQ(refused("small", "poet"),
            "adapter 'poet': model 'small' has none of this name; it has clerk; if it is another "
            "model's, connect to that one");
  EXPECT_EQ(refused("hybrid", "poet"),
            "adapter 'poet': model 'hybrid' has none of this name; --lora-modules names none for "
            "it; if it is another model's, connect to that one");
  EXPECT_EQ(refused("small", "clerk"), "");

  const std::string prompt = passage(0, 600);
  const auto generate = [&](const std::string& model, const std::string& adapter) {
    return daemon.cli({"generate", "--model", model, "--adapter", adapter, "--prompt", prompt,
                       "--max-tokens", "1", "--format", "json"});
  };
  EXPECT_EQ(generate("small", "clerk").json()["engine"], 2);
  EXPECT_THAT(generate("small", "lawyer").err, HasSubstr("it has clerk"));
  const auto why = [&](const std::string& model, const std::string& adapter) {
    return daemon.cli(
        {"pool", "why", prompt, "--model", model, "--adapter", adapter, "--format", "json"});
  };
  EXPECT_GT(why("small", "clerk").json()["cached_blocks"], 3);
  EXPECT_EQ(why("demo", "poet").json()["cached_blocks"], 0);
  EXPECT_THAT(why("demo", "clerk").err,
              HasSubstr("'clerk' is an adapter of model 'small'; give --model its name"));
  EXPECT_THAT(why("demo", "sage").err,
              HasSubstr("model 'demo' has no 'sage'; it has lawyer, poet"));
}

/// It has one model, and names its adapters as if there were no other.
TEST(SeveralModels, AnEngineStartedByHandHasTheAdaptersOfItsModel) {
  const AdaptersOfTwo adapters;
  const Models models = adapters.models();
  const Daemon daemon(models.flags({"--kv-cache-memory-bytes", "8M"}));
  const auto flags = [&](const std::string& modules) {
    return std::vector<std::string>{"--model",        "small=" + models.small.path(),
                                    "--block-size",   "32",
                                    "--socket",       daemon.socket(),
                                    "--threads",      "1",
                                    "--log-level",    "error",
                                    "--lora-modules", modules};
  };
  EXPECT_THAT(run("kvhive-engine", flags("small:clerk=" + adapters.clerk.path())).err,
              HasSubstr("its weights or its adapters (--lora-modules) are not those"));
  auto without = flags("clerk=" + adapters.clerk.path());
  without.erase(without.begin() + 2, without.begin() + 4);
  EXPECT_THAT(run("kvhive-engine", without).err, HasSubstr("start it with --block-size 32"));
  const pid_t guest = spawn(program("kvhive-engine"), flags("clerk=" + adapters.clerk.path()));
  EXPECT_TRUE(eventually([&] { return daemon.engine(3) != nullptr; }, std::chrono::seconds(60)));
  GenerateRequest request = request_of("In the beginning", 8);
  request.adapter = "clerk";
  EXPECT_EQ(ids(*connect_to(daemon, "small", 3).generate(request)),
            ids(*connect_to(daemon, "small", 2).generate(request)));
  signal_process(guest, SIGKILL);
  waitpid(guest, nullptr, 0);
}

TEST(SeveralModels, StreamsGoOnWhenEnginesDie) {
  const AdaptersOfTwo adapters;
  const Models models = adapters.models();
  const auto expected = alone(models, requests());
  const Daemon daemon(models.flags({"--engines", "2", "--kv-cache-memory-bytes", "16M"}));
  const auto engines = static_cast<std::uint32_t>(daemon.status()["engines"].size());
  std::uint32_t next = 0;
  int deaths = 0;  // of engines that ran requests
  for (int round = 0; deaths < 6 && round < 20; ++round) {
    std::atomic<bool> has_ended = false;
    // A request of which four engines have died is not tried again.
    std::thread killer([&] {
      for (int of_round = 0; of_round < 3 && !has_ended; next = (next + 1) % engines) {
        if (daemon.running(next) == 0) continue;
        EXPECT_TRUE(kill_and_await_next(daemon, next));
        ++of_round;
        ++deaths;
      }
    });
    EXPECT_EQ(together(daemon, models, requests()), expected);
    has_ended = true;
    killer.join();
  }
  EXPECT_GE(deaths, 6);
  EXPECT_TRUE(daemon.fsck_is_clean());
}

TEST(SeveralModels, AClientNamesItsModelOrIsToldWhichThereAre) {
  const Models models;
  const Daemon daemon(models.flags({"--kv-cache-memory-bytes", "8M"}));
  const auto refused = [&](const std::string& model, std::optional<std::uint32_t> engine) {
    ClientOptions options = client_options(daemon.socket());
    options.model = model;
    options.engine = engine;
    const auto client = Client::connect(options);
    return client ? "" : client.error().text;
  };
  EXPECT_THAT(refused("large", {}),
              HasSubstr("model 'large' is not served here; there are: demo, hybrid, small"));
  EXPECT_THAT(refused("demo", 2), HasSubstr("engine 2 serves model 'small', not 'demo'"));
  EXPECT_THAT(refused(std::string(80, 'x'), {}), HasSubstr("at most 64 bytes"));
  // Without a name the first one, or that of the engine.
  const auto engines = [&](Client client) {
    (void)client.generate(request_of("In the beginning", 1));
    return daemon.status()["clients"].back();
  };
  EXPECT_EQ(engines(daemon.connect())["model"], "demo");
  EXPECT_EQ(engines(daemon.connect(2))["model"], "small");
  EXPECT_EQ(engines(connect_to(daemon, "hybrid"))["engines"], Json::array({1}));

  const auto said = daemon.cli({"generate", "--model", "small", "--prompt", "In the beginning",
                                "--max-tokens", "4", "--format", "json"});
  EXPECT_EQ(said.json()["engine"], 2) << said.err;
  EXPECT_NE(daemon.cli({"generate", "--model", "x", "--prompt", "a"}).exit_code, 0);
}

TEST(SeveralModels, AModelsLastEngineIsNotRemovedForItsRequestsWouldWaitForEver) {
  const Models models;
  const Daemon daemon(models.flags({"--kv-cache-memory-bytes", "8M"}));
  const auto refused = daemon.cli({"engine", "remove", "2"});
  EXPECT_EQ(refused.exit_code, 1);
  EXPECT_THAT(refused.err, HasSubstr("engine 2 is the last of model 'small', whose requests would "
                                     "wait for ever; add another first (kvhive engine add --model "
                                     "small)"));
  ASSERT_EQ(daemon.cli({"engine", "add", "--model", "small"}).exit_code, 0);
  EXPECT_EQ(daemon.cli({"engine", "remove", "2"}).exit_code, 0);
  EXPECT_EQ(connect_to(daemon, "small", 3).generate(request_of("And", 4))->tokens.size(), 4u);
}

TEST(SeveralModels, AnEngineIsAddedForAModel) {
  const Models models;
  const Daemon daemon(models.flags({"--kv-cache-memory-bytes", "8M"}));
  EXPECT_THAT(daemon.cli({"engine", "add", "--model", "large"}).err, HasSubstr("not served here"));
  ASSERT_EQ(daemon.cli({"engine", "add", "--model", "small"}).exit_code, 0);
  daemon.kill_keeper();
  const Json added = daemon.status()["engines"].back();
  EXPECT_EQ(added["model"], "small");
  EXPECT_EQ(ids(*connect_to(daemon, "small", 3).generate(request_of("In the beginning", 8))),
            ids(*connect_to(daemon, "small", 2).generate(request_of("In the beginning", 8))));
  signal_process(added["pid"], SIGKILL);
  EXPECT_TRUE(eventually([&] {
    const Json again = daemon.status()["engines"].back();
    return again["state"] == "serving" && again["restarts"] == 1 && again["model"] == "small";
  }));
}

/// Publishes about `count` blocks of a model, all different.
void fill(const Daemon& daemon, const std::string& model, std::size_t count) {
  Client client = connect_to(daemon, model);
  for (std::size_t i = 0; i < count / 16; ++i) {
    std::vector<TokenId> prompt(16 * 16 + 1);
    for (std::size_t k = 0; k < prompt.size(); ++k)
      prompt[k] = static_cast<TokenId>((i * 7919 + k * 31) % 500);
    GenerateRequest request;
    request.prompt_tokens = prompt;
    request.max_tokens = 1;
    ASSERT_TRUE(client.generate(request).has_value());
  }
  EXPECT_TRUE(eventually([&] { return daemon.nothing_is_held(); }));
}

TEST(SeveralModels, MemoryGoesToWhoeverNeedsIt) {
  const Models models;
  const Daemon daemon({"--model", "a=" + kDemoModel, "--model", "b=" + models.small.path(),
                       "--num-gpu-blocks-override", "129", "--model-options", "b=block-size:16"});
  fill(daemon, "a", 300);
  EXPECT_GE(model_row(daemon, "a")["device_idle"], 127);  // all there is
  fill(daemon, "b", 300);
  EXPECT_LE(model_row(daemon, "a")["device_idle"], 1);
  EXPECT_GE(model_row(daemon, "b")["device_idle"], 127);
  fill(daemon, "a", 300);
  EXPECT_LE(model_row(daemon, "b")["device_idle"], 1);
  EXPECT_GT(model_row(daemon, "b")["unused_bytes_per_block"].get<int>(), 0);
  EXPECT_TRUE(daemon.fsck_is_clean());
}

TEST(SeveralModels, AModelKeepsItsMinimum) {
  const Models models;
  const Daemon daemon({"--model", "a=" + kDemoModel, "--model", "b=" + models.small.path(),
                       "--num-gpu-blocks-override", "129", "--model-options",
                       "b=block-size:16,min-blocks:25%"});
  EXPECT_EQ(model_row(daemon, "b")["min_blocks"], 32);
  fill(daemon, "a", 300);
  EXPECT_GE(model_row(daemon, "a")["device_idle"], 127);  // what nobody has is not kept free
  fill(daemon, "b", 300);
  fill(daemon, "a", 300);
  EXPECT_EQ(model_row(daemon, "b")["device_idle"], 32);
  EXPECT_GE(model_row(daemon, "a")["device_idle"], 95);
  signal_process(daemon.status()["engines"][0]["pid"], SIGKILL);
  fill(daemon, "a", 300);
  EXPECT_EQ(model_row(daemon, "b")["device_idle"], 32);
  EXPECT_TRUE(daemon.fsck_is_clean());
}

TEST(SeveralModels, ToolsNameTheModel) {
  const Models models;
  const Daemon daemon(models.flags({"--kv-cache-memory-bytes", "8M"}));
  const std::string prompt = passage(0, 600);
  ASSERT_TRUE(connect_to(daemon, "small").generate(request_of(prompt, 1)).has_value());
  const auto why = [&](const std::string& model) {
    return daemon.cli({"pool", "why", "--prompt", prompt, "--model", model, "--format", "json"})
        .json();
  };
  EXPECT_GT(why("small")["computed_from_block"].get<int>(), 3);
  EXPECT_EQ(why("demo")["computed_from_block"], 0);
  EXPECT_THAT(daemon.cli({"pool", "why", "--prompt", prompt, "--model", "x"}).err,
              HasSubstr("there are: demo, hybrid, small"));
  EXPECT_THAT(daemon.cli({"pool", "procs"}).out, HasSubstr("engine 1 of hybrid"));
  EXPECT_THAT(daemon.cli({"pool", "stat"}).out, HasSubstr("tokens per block"));
  const auto layout =
      run("kvhive", models.flags({"layout", "--kv-cache-memory-bytes", "8M", "--format", "json"}));
  ASSERT_THAT(layout.json(), SizeIs(3)) << layout.err;
  EXPECT_EQ(layout.json()[0]["block_bytes"], layout.json()[2]["block_bytes"]);
  // A third of the bytes a token: on a GPU twice as many tokens, for it takes powers of two.
  const SmallModel whole(3), third(1);
  for (const auto& [device, tokens] : {std::pair{"cpu", 48}, {"cuda", 32}})
    EXPECT_EQ(
        run("kvhive", {"layout", "--model", "a=" + whole.path(), "--model", "b=" + third.path(),
                       "--device", device, "--kv-cache-memory-bytes", "8M", "--format", "json"})
            .json()[1]["block_size"],
        tokens);
}

TEST(SeveralModels, LayoutSaysWhatADaemonWould) {
  const std::string a = "a=" + kDemoModel, b = "b=" + kDemoModel;
  const auto layout = [&](std::vector<std::string> more) {
    more.insert(more.begin(), {"layout", "--model", a, "--model", b, "--kv-cache-memory-bytes",
                               "8M", "--model-options"});
    return run("kvhive", more);
  };
  EXPECT_THAT(layout({"a=min-blocks:80%;b=min-blocks:30%"}).err,
              HasSubstr("'min-blocks:30%' of 'b' makes"));
  EXPECT_THAT(layout({"a=max-model-len:16"}).out,
              HasSubstr("16; no longer than a block: nothing of it is cached"));
}

TEST(SeveralModels, WhatCannotBeIsRefusedByName) {
  const auto words = [](std::vector<std::string> flags) {
    flags.insert(flags.end(), {"--socket", "/tmp/kvhive-nowhere", "--kv-cache-memory-bytes", "8M"});
    return run("kvhived", flags).err;
  };
  const std::string a = "a=" + kDemoModel, b = "b=" + kDemoModel;
  EXPECT_THAT(words({"--model", a, "--model", a}), HasSubstr("model: 'a' is the name of two"));
  EXPECT_THAT(words({"--model", a, "--model", b, "--model-options", "c=engines:2"}),
              AllOf(HasSubstr("model-options: 'c=engines:2' names no model"),
                    HasSubstr("the names that --model gives: a, b")));
  EXPECT_THAT(words({"--model", a, "--model", b, "--model-options", "a=gears:2"}),
              HasSubstr("model-options: 'gears:2' is unknown"));
  EXPECT_THAT(words({"--model", a, "--model", b, "--model-options", "a=block-size:0"}),
              HasSubstr("'block-size:0' is out of range"));
  EXPECT_THAT(words({"--model", a, "--model", b, "--engines", "16"}),
              HasSubstr("engines: '16' makes 32 with all models"));
  EXPECT_THAT(words({"--model", a, "--model", b, "--lora-modules", "x=/y"}),
              HasSubstr("lora-modules 'x=/y' has none of the models in front (a, b); write "
                        "MODEL:NAME=DIRECTORY"));
  EXPECT_THAT(words({"--model", a, "--model", b, "--lora-modules", "a:x=/y,b:x=/z"}),
              HasSubstr("lora-modules names 'x' twice"));
  EXPECT_THAT(words({"--model", a, "--model", b, "--lora-modules", "a:b=/y"}),
              HasSubstr("'b' is a model's own name"));
  const std::string missing =
      words({"--model", a, "--model", b, "--lora-modules", "b:poet=/nowhere"});
  EXPECT_THAT(missing, HasSubstr("model 'b': "));
  EXPECT_THAT(missing, HasSubstr("lora-modules 'poet': "));
  EXPECT_THAT(missing, HasSubstr("/nowhere/adapter_config.json"));
  EXPECT_THAT(
      words({"--model", a, "--model", b, "--model-options", "a=min-blocks:60%;b=min-blocks:60%"}),
      HasSubstr("'min-blocks:60%' of 'b' makes"));
}

}  // namespace
}  // namespace kvhive::testing
