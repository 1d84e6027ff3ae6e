// LoRA adapters in whole daemons: requests name them, several at once, on any engine; blocks are
// shared within an adapter and not across.

#include <gmock/gmock.h>

#include <map>

#include "tests/support/demo_adapter.hpp"
#include "tests/tools/whole_answers.hpp"

namespace kvhive::testing {
namespace {

using ::testing::HasSubstr;

class Adapters : public ::testing::Test {
 protected:
  const DemoAdapter poet_{1}, lawyer_{2};
  const std::string modules_ = "poet=" + poet_.path() + ",lawyer=" + lawyer_.path();
  const Daemon daemon_{{"--engines", "2", "--kv-cache-memory-bytes", "32M", "--lora-modules",
                        "poet=" + poet_.path() + ",lawyer=" + lawyer_.path()}};

  static GenerateRequest asked(const std::string& adapter, std::uint32_t max_tokens = 24,
                               std::size_t length = 900) {
    GenerateRequest request = request_of(passage(0, length), max_tokens);
    request.adapter = adapter;
    return request;
  }
  Progress generate(std::uint32_t engine, const GenerateRequest& request) const {
    Progress done = *daemon_.connect(engine).generate(request);
    EXPECT_EQ(done.reason, Finish::length) << done.error.text;
    return done;
  }
};

TEST_F(Adapters, EachHasItsOwnTokensAndSharesItsOwnBlocks) {
  std::map<std::string, std::vector<TokenId>> tokens;
  for (const char* adapter : {"", "poet", "lawyer"}) {
    const Progress first = generate(0, asked(adapter));
    EXPECT_EQ(first.cached_tokens, 0u) << adapter;
    tokens[adapter] = ids(first);
  }
  EXPECT_NE(tokens["poet"], tokens[""]);
  EXPECT_NE(tokens["lawyer"], tokens["poet"]);
  for (const char* adapter : {"poet", "lawyer", ""}) {
    const Progress again = generate(1, asked(adapter));
    EXPECT_GT(again.cached_tokens, 100u) << adapter;
    EXPECT_EQ(ids(again), tokens[adapter]) << adapter;
  }
  EXPECT_TRUE(daemon_.fsck_is_clean());
}

TEST_F(Adapters, SeveralInABatchGiveTheTokensOfEachAlone) {
  std::vector<GenerateRequest> all;
  for (int i = 0; i < 12; ++i)
    all.push_back(
        asked(std::array{"poet", "", "lawyer"}[i % 3], 30, 200 + static_cast<std::size_t>(i) * 37));
  std::vector<std::vector<TokenId>> alone;
  for (const GenerateRequest& request : all) alone.push_back(ids(generate(0, request)));
  std::vector<Client> clients;
  clients.push_back(daemon_.connect());
  const auto together = generate_all(clients, all);
  for (std::size_t i = 0; i < all.size(); ++i) EXPECT_EQ(ids(together[i]), alone[i]) << i;
}

TEST_F(Adapters, ARequestGoesOnWithItsAdapterWhenItsEngineDies) {
  const auto expected = ids(generate(0, asked("poet", 300, 300)));
  Client client = daemon_.connect();
  bool is_killed = false;
  GenerateRequest request = asked("poet", 300, 300);
  request.cache_salt = "anew";  // so that all of it is computed again
  const auto done = client.generate(request, [&](const Progress& news) {
    if (news.tokens.empty() || !news.engine || std::exchange(is_killed, true)) return;
    signal_process(daemon_.engine(*news.engine)["pid"].get<pid_t>(), SIGKILL);
  });
  ASSERT_TRUE(done.has_value());
  EXPECT_EQ(ids(*done), expected);
}

/// Of two adapters and of none, in a pool that is too small for all.
TEST_F(Adapters, PreemptedRequestsGiveTheTokensOfEachAlone) {
  std::vector<GenerateRequest> all = overlapping_requests(24, 30, 10);
  for (std::size_t i = 0; i < all.size(); ++i)
    all[i].adapter = std::array{"poet", "", "lawyer"}[i / 3 % 3];
  const Tokens expected = tokens_one_by_one(daemon_, all);
  for (const bool is_swap : {false, true}) {
    SCOPED_TRACE(is_swap ? "swap" : "recompute");
    const Daemon daemon({"--engines", "2", "--lora-modules", modules_, "--num-gpu-blocks-override",
                         "90", "--swap-space", "8M", "--preemption-mode",
                         is_swap ? "swap" : "recompute", "--max-model-len", "512",
                         "--max-num-batched-tokens", "64", "--max-num-seqs", "12"});
    EXPECT_EQ(tokens_at_once(daemon, all), expected);
    EXPECT_EQ(tokens_at_once(daemon, all), expected);
    EXPECT_GT(counted(daemon.pool(), is_swap ? CounterName("preemptions_swap")
                                             : CounterName("preemptions_recompute")),
              0u);
    EXPECT_TRUE(daemon.fsck_is_clean());
  }
}

TEST_F(Adapters, ANameThatNobodyHasIsRefusedWithThoseThatThereAre) {
  const Progress done = *daemon_.connect().generate(asked("painter"));
  EXPECT_EQ(done.reason, Finish::error);
  EXPECT_THAT(done.error.text, HasSubstr("it has poet, lawyer"));
}

TEST_F(Adapters, TheCommandLineKnowsThem) {
  generate(0, asked("poet"));
  const std::string prompt = passage(0, 900);
  const auto why = [&](std::vector<std::string> more) {
    more.insert(more.begin(), {"pool", "why", prompt, "--format", "json"});
    return daemon_.cli(more).json();
  };
  EXPECT_GT(why({"--adapter", "poet"})["cached_blocks"], 8);
  EXPECT_EQ(why({"--adapter", "lawyer"})["cached_blocks"], 0);
  EXPECT_EQ(why({})["cached_blocks"], 0);
  const CommandResult unknown = daemon_.cli({"pool", "why", prompt, "--adapter", "painter"});
  EXPECT_NE(unknown.exit_code, 0);
  EXPECT_THAT(unknown.err, HasSubstr("it has poet, lawyer"));
  const CommandResult sent = daemon_.cli({"generate", "--prompt", prompt, "--adapter", "poet",
                                          "--max-tokens", "1", "--format", "json"});
  EXPECT_GT(sent.json()["cached_tokens"], 64) << sent.err;
  EXPECT_EQ(daemon_.status()["model"]["adapters"], Json({"poet", "lawyer"}));
}

/// Or blocks of the old bytes would be found under the name of the new ones.
TEST_F(Adapters, AnEngineWithOtherBytesBehindANameIsRefused) {
  const DemoAdapter other(7);
  const auto flags = [&](const std::string& modules) {
    return std::vector<std::string>{"--model",        kDemoModel,       "--socket",
                                    daemon_.socket(), "--lora-modules", modules};
  };
  const CommandResult exchanged =
      run("kvhive-engine", flags("poet=" + other.path() + ",lawyer=" + lawyer_.path()));
  EXPECT_NE(exchanged.exit_code, 0);
  EXPECT_THAT(exchanged.err, HasSubstr("fingerprint"));
  EXPECT_NE(run("kvhive-engine", flags("poet=" + poet_.path())).exit_code, 0) << "one is missing";
}

TEST(AdaptersAtTheStart, WhatCannotBeLoadedIsNamed) {
  const auto start = [](const std::string& modules) {
    return run("kvhived", {"--model", kDemoModel, "--kv-cache-memory-bytes", "8M", "--socket",
                           "/tmp/kvhive-no-such-daemon.sock", "--lora-modules", modules});
  };
  const CommandResult missing = start("poet=/nowhere");
  EXPECT_NE(missing.exit_code, 0);
  EXPECT_THAT(missing.err, HasSubstr("lora-modules 'poet': "));
  EXPECT_THAT(missing.err, HasSubstr("/nowhere/adapter_config.json"));
  EXPECT_THAT(start("poet").err, HasSubstr("lacks a name or a directory"));
  EXPECT_THAT(start("a=/x,a=/y").err, HasSubstr("names 'a' twice"));
  EXPECT_THAT(start("p\xc3\xb6t=/x").err, HasSubstr("printable ASCII"));
  const DemoAdapter adapter(1);
  EXPECT_THAT(start("demo=" + adapter.path()).err, HasSubstr("is the model's own name"));
}

}  // namespace
}  // namespace kvhive::testing
