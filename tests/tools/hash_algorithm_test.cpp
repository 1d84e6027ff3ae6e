// Whole daemons whose blocks are named by SHA-256 (--prefix-caching-hash-algo sha256).

#include <gmock/gmock.h>

#include "tests/tools/engine_death.hpp"

namespace kvhive::testing {
namespace {

using ::testing::HasSubstr;

TEST(HashAlgorithms, EnginesShareByAnyAndTheOneThatWasChosenOutlivesThem) {
  std::vector<TokenId> tokens;
  for (const char* algorithm : {"xxhash", "sha256"}) {
    const Daemon daemon({"--engines", "2", "--kv-cache-memory-bytes", "8M",
                         "--prefix-caching-hash-algo", algorithm});
    const Progress first = *daemon.connect(0).generate(request_of(passage(0, 900), 8));
    EXPECT_EQ(first.cached_tokens, 0u);
    if (tokens.empty()) tokens = ids(first);
    daemon.kill_keeper();
    ASSERT_TRUE(kill_and_await_next(daemon, 1));
    const Progress second = *daemon.connect(1).generate(request_of(passage(0, 900), 8));
    EXPECT_EQ(second.cached_tokens, (second.prompt_tokens - 1) / 16 * 16) << algorithm;
    EXPECT_EQ(ids(second), tokens);
    EXPECT_EQ(daemon.stat()["hash_algorithm"], algorithm);
    EXPECT_TRUE(daemon.fsck_is_clean()) << "it computes the names again";
    EXPECT_EQ(daemon.cli({"pool", "why", passage(0, 900), "--format", "json"})
                  .json()["blocks"][0]["verdict"],
              "present");
    const std::string shown = daemon.cli({"pool", "stat"}).out;
    EXPECT_EQ(shown.find("names by sha256") != std::string::npos,
              algorithm == std::string("sha256"));
  }
}

}  // namespace
}  // namespace kvhive::testing
