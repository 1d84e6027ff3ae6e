// Cache salts between real processes: prompts with different salts share no blocks, whatever engine
// computes them, dies or moves them to the host tier; and the tokens are the same.

#include <gmock/gmock.h>

#include "tests/tools/daemon.hpp"

namespace kvhive::testing {
namespace {

using ::testing::HasSubstr;

GenerateRequest salted(const std::string& salt, std::uint32_t max_tokens = 8) {
  GenerateRequest request = request_of(passage(0, 1'500), max_tokens);
  request.cache_salt = salt;
  return request;
}

std::uint32_t most_cached(const Progress& result) { return (result.prompt_tokens - 1) / 16 * 16; }

Progress generate(const Daemon& daemon, std::uint32_t engine, const GenerateRequest& request) {
  Progress done = *daemon.connect(engine).generate(request);
  EXPECT_EQ(done.reason, Finish::length) << done.error.text;
  return done;
}

TEST(CacheSalts, EnginesShareWithinASaltAndNothingAcross) {
  const Daemon daemon;
  const Progress first = generate(daemon, 0, salted("alice"));
  EXPECT_EQ(first.cached_tokens, 0u);
  for (const char* other : {"bob", "", "alic", "alice2"}) {
    const Progress its = generate(daemon, 0, salted(other));
    EXPECT_EQ(its.cached_tokens, 0u) << other;
    EXPECT_EQ(ids(its), ids(first)) << "a salt changes no token";
  }
  for (const char* salt : {"alice", "bob", ""}) {
    const Progress again = generate(daemon, 1, salted(salt));
    EXPECT_EQ(again.cached_tokens, most_cached(again)) << salt;
    EXPECT_EQ(ids(again), ids(first));
  }
  EXPECT_TRUE(daemon.fsck_is_clean());
}

TEST(CacheSalts, WhyAnswersForASalt) {
  const Daemon daemon;
  generate(daemon, 0, salted("alice"));
  const std::string prompt = passage(0, 1'500);
  const auto why = [&](std::vector<std::string> more) {
    more.insert(more.begin(), {"pool", "why", prompt, "--format", "json"});
    return daemon.cli(more).json();
  };
  EXPECT_EQ(why({"--cache-salt", "alice"})["blocks"][0]["verdict"], "present");
  const Json without = why({});
  EXPECT_EQ(without["cached_blocks"], 0);
  EXPECT_EQ(without["blocks"][0]["verdict"], "other_salt");
  EXPECT_THAT(without["reason"].get<std::string>(),
              HasSubstr("under another cache salt or adapter only"));
  EXPECT_EQ(why({"--cache-salt", "bob"})["blocks"][0]["verdict"], "other_salt");
  // The command line sends salts, too.
  const CommandResult sent = daemon.cli({"generate", "--prompt", prompt, "--cache-salt", "alice",
                                         "--max-tokens", "1", "--format", "json"});
  EXPECT_GT(sent.json()["cached_tokens"], 64) << sent.err;
  const CommandResult refused =
      daemon.cli({"generate", "--prompt", "a", "--cache-salt", std::string(129, 's')});
  EXPECT_NE(refused.exit_code, 0);
  EXPECT_THAT(refused.err, HasSubstr("cache_salt has 129 bytes; at most 128"));
}

/// Whoever goes on with the request publishes its blocks under the salt, and finds those that are.
TEST(CacheSalts, SurviveTheirEngine) {
  const Daemon daemon;
  Client client = daemon.connect();
  const GenerateRequest request = salted("alice", 1'200);
  bool is_killed = false;
  const auto done = client.generate(request, [&](const Progress& news) {
    if (news.tokens.empty() || !news.engine || std::exchange(is_killed, true)) return;
    signal_process(daemon.engine(*news.engine)["pid"].get<pid_t>(), SIGKILL);
  });
  ASSERT_TRUE(done.has_value());
  ASSERT_EQ(done->reason, Finish::length) << done->error.text;
  GenerateRequest next = request;
  next.prompt += done->text;
  next.max_tokens = 8;
  EXPECT_TRUE(
      eventually([&] { return !daemon.engine(1).is_null() && !daemon.engine(0).is_null(); }));
  const Progress hers = generate(daemon, 0, next);
  EXPECT_GT(hers.cached_tokens, 1'000u);
  next.cache_salt = "";
  EXPECT_EQ(generate(daemon, 1, next).cached_tokens, 0u)
      << "the engine that went on has published blocks without the salt";
  EXPECT_TRUE(daemon.fsck_is_clean());
}

TEST(CacheSalts, SurviveTheHostTierAndPreemption) {
  const Daemon daemon({"--engines", "2", "--num-gpu-blocks-override", "48", "--max-model-len",
                       "512", "--swap-space", "8M", "--preemption-mode", "swap"});
  GenerateRequest request = request_of(passage(0, 600), 8);
  request.cache_salt = "alice";
  const Progress first = generate(daemon, 0, request);
  // So many at once that they preempt each other, and evict what was there.
  std::vector<Client> clients;
  for (const std::uint32_t engine : {0u, 1u}) clients.push_back(daemon.connect(engine));
  std::vector<GenerateRequest> others;
  for (int i = 0; i < 16; ++i) {
    others.push_back(request_of(std::to_string(i) + passage(0, 400), 40));
    others.back().cache_salt = i % 2 == 0 ? "alice" : "bob";
  }
  for (const Progress& result : generate_all(clients, others))
    EXPECT_EQ(result.reason, Finish::length) << result.error.text;
  EXPECT_GE(daemon.preemptions(), 1u);
  const Progress again = generate(daemon, 1, request);
  EXPECT_EQ(again.cached_tokens, most_cached(again));
  EXPECT_EQ(ids(again), ids(first));
  request.cache_salt = "bob";
  EXPECT_EQ(generate(daemon, 0, request).cached_tokens, 0u);
  EXPECT_TRUE(daemon.fsck_is_clean());
}

}  // namespace
}  // namespace kvhive::testing
