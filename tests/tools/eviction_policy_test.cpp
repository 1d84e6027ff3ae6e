// Whole daemons whose pool spares blocks that were hit (--eviction-policy second-chance).

#include "tests/tools/engine_death.hpp"
#include "tests/tools/requests.hpp"

namespace kvhive::testing {
namespace {

/// The blocks of a prompt that is asked twice, after so many others that all blocks were evicted
/// once, and the tokens of its answer then.
struct Outcome {
  std::size_t cached = 0;
  std::vector<TokenId> tokens;
};

class EvictionPolicies : public ::testing::Test {
 protected:
  /// Four prompts fill the pool.
  static std::vector<std::string> flags(const std::string& policy) {
    return {"--engines",       "2",   "--num-gpu-blocks-override", "48",
            "--max-model-len", "512", "--eviction-policy",         policy};
  }

  static Outcome asked_again_under_pressure(const Daemon& daemon) {
    Client first = daemon.connect(0), second = daemon.connect(1);
    const Progress once = *first.generate(request_number(0));
    EXPECT_EQ(second.generate(request_number(0))->cached_tokens, once.prompt_tokens / 16 * 16);
    for (std::size_t i = 1; i <= 5; ++i) EXPECT_TRUE(first.generate(request_number(i)));
    const Progress again = *second.generate(request_number(0));
    return {again.cached_tokens, ids(again)};
  }
};

TEST_F(EvictionPolicies, WhatWasHitOutlastsWhatWasNot) {
  const Daemon lru(flags("lru")), spares(flags("second-chance"));
  const Outcome gone = asked_again_under_pressure(lru), kept = asked_again_under_pressure(spares);
  EXPECT_EQ(gone.cached, 0u) << "the load is too small to evict it";
  EXPECT_GT(kept.cached, 0u);
  EXPECT_EQ(gone.tokens, kept.tokens);
  EXPECT_EQ(lru.stat()["eviction_policy"], "lru");
  EXPECT_EQ(lru.stat()["spared_blocks"], 0);
  EXPECT_EQ(spares.stat()["eviction_policy"], "second-chance");
  EXPECT_GT(spares.stat()["spared_blocks"], 0);
  EXPECT_TRUE(spares.fsck_is_clean());
  EXPECT_NE(spares.cli({"pool", "stat"}).out.find("eviction policy second-chance"),
            std::string::npos);
}

TEST_F(EvictionPolicies, ThePolicyOutlivesKeeperAndEngines) {
  const Daemon daemon(flags("second-chance"));
  daemon.kill_keeper();
  ASSERT_TRUE(kill_and_await_next(daemon, 0));
  EXPECT_GT(asked_again_under_pressure(daemon).cached, 0u);
  EXPECT_EQ(daemon.stat()["eviction_policy"], "second-chance");
}

}  // namespace
}  // namespace kvhive::testing
