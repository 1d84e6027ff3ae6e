// Blocks that the device tier evicts are found again in the host tier by every engine, and the
// tokens are the same as without eviction.

#include <gmock/gmock.h>

#include "tests/tools/daemon.hpp"
#include "tests/tools/requests.hpp"

namespace kvhive::testing {
namespace {

using ::testing::HasSubstr;

std::vector<TokenId> undisturbed(std::size_t i) {
  static const Daemon daemon(
      {"--kv-cache-memory-bytes", "32M", "--enable-prefix-caching", "false"});
  static Client client = daemon.connect();
  return ids(*client.generate(request_number(i)));
}

/// A daemon whose device tier holds two or three of the prompts.
class Demotion : public ::testing::Test {
 protected:
  /// Evicts all idle blocks of the device tier with prompts that no test uses again.
  void press(std::uint32_t engine) {
    Client client = daemon_.connect(engine);
    for (int i = 0; i < 6; ++i) generate(client, next_++);
  }
  Progress generate(Client& client, std::size_t number) {
    Progress done = *client.generate(request_number(number));
    EXPECT_EQ(done.reason, Finish::length) << done.error.text;
    return done;
  }
  std::size_t found(std::size_t number, const char* tier) const {
    const Json why =
        daemon_.cli({"pool", "why", request_number(number).prompt, "--format", "json"}).json();
    std::size_t blocks = 0;
    for (const Json& block : why["blocks"])
      blocks += block.contains(std::string(tier) + "_block") ? 1 : 0;
    return blocks;
  }

  Daemon daemon_{{"--engines", "2", "--num-gpu-blocks-override", "48", "--max-model-len", "512",
                  "--swap-space", "8M"}};
  std::size_t next_ = 100;
};

TEST_F(Demotion, AnyEngineCopiesAnEvictedPromptBackFromTheHostTier) {
  std::uint64_t brought_back = 0;
  for (const std::uint32_t engine : {0u, 1u}) {
    Client client = daemon_.connect(engine);
    const Progress first = generate(client, engine);
    ASSERT_GT(first.prompt_tokens, 128u);
    press(1 - engine);
    ASSERT_EQ(found(engine, "device"), 0u);
    ASSERT_GE(found(engine, "host"), first.prompt_tokens / 16);
    const CommandResult why = daemon_.cli({"pool", "why", request_number(engine).prompt});
    EXPECT_THAT(why.out, HasSubstr("on the host"));
    EXPECT_THAT(why.out, HasSubstr("moved to the host tier"));

    const Progress again = generate(client, engine);
    EXPECT_EQ(again.cached_tokens, (again.prompt_tokens - 1) / 16 * 16);
    brought_back += again.cached_tokens / 16;
    EXPECT_EQ(ids(first), undisturbed(engine));
    EXPECT_EQ(ids(again), undisturbed(engine));
  }
  const Json stat = daemon_.stat();
  EXPECT_GT(stat["demoted_blocks"], 20);
  EXPECT_EQ(stat["promoted_blocks"], brought_back);
  EXPECT_GT(daemon_.engine(0)["demoted_blocks"], 0);
  EXPECT_GT(daemon_.engine(1)["promoted_blocks"], 0);
  EXPECT_THAT(daemon_.cli({"pool", "stat"}).out, HasSubstr("moved to the host tier"));
  EXPECT_TRUE(daemon_.fsck_is_clean());
}

TEST_F(Demotion, TokensAreTheSameUnderPressureFromBothEngines) {
  std::vector<Client> clients;
  for (const std::uint32_t engine : {0u, 1u}) clients.push_back(daemon_.connect(engine));
  std::vector<GenerateRequest> requests;
  for (std::size_t i = 0; i < 60; ++i) requests.push_back(request_number(i % 7));
  const auto results = generate_all(clients, requests);
  for (std::size_t i = 0; i < results.size(); ++i)
    EXPECT_EQ(ids(results[i]), undisturbed(i % 7)) << i;
  EXPECT_GT(daemon_.stat()["promoted_blocks"], 20);
  EXPECT_TRUE(daemon_.fsck_is_clean());
}

TEST_F(Demotion, AnEngineKilledDuringADemotionDoesNoHarm) {
  const PoolMemory pool = daemon_.pool();
  const auto is_demoting = [&] {
    const auto& host = pool.tier_layout(Tier::host);
    for (std::uint32_t i = 0; i < host.blocks; ++i)
      if (BlockWord{pool.descriptors()[host.first_block + i].word.load()}.state() ==
          BlockState::filling)
        return true;
    return false;
  };
  Client client = daemon_.connect(0);
  int deaths = 0;
  // A busy machine may not run this test while a block is demoted.
  for (std::size_t i = 0; i < 12 || (deaths < 3 && i < 100); ++i) {
    const pid_t pid = daemon_.pid_of(0);
    const RequestId number = *client.submit(request_number(i));
    Progress whole;
    bool is_dead = false;
    while (whole.reason == Finish::none) {
      if (!is_dead && deaths < 5 && is_demoting()) {
        signal_process(pid, SIGKILL);
        is_dead = true;
        ++deaths;
      }
      Progress news = *client.read(number);
      whole.tokens.insert(whole.tokens.end(), news.tokens.begin(), news.tokens.end());
      whole.reason = news.reason;
    }
    EXPECT_EQ(whole.reason, Finish::length);
    EXPECT_EQ(ids(whole), undisturbed(i));
    EXPECT_TRUE(eventually([&] { return !daemon_.engine(0).is_null() && !is_demoting(); }));
    EXPECT_TRUE(daemon_.fsck_is_clean());
  }
  EXPECT_GE(deaths, 3) << "too few engines were killed during a demotion";
  const Json tiers = daemon_.stat()["tiers"];
  for (const char* tier : {"device", "host"}) {
    EXPECT_EQ(tiers[tier]["held"], 0) << tier;
    EXPECT_EQ(tiers[tier]["filling"], 0) << tier;
  }
  for (std::size_t i = 0; i < 12; ++i)
    EXPECT_EQ(ids(generate(client, i)), undisturbed(i)) << "a dead engine left wrong bytes";
}

}  // namespace
}  // namespace kvhive::testing
