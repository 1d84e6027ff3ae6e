// One engine uses the blocks that the other computed, and the tokens are the same as without
// sharing (invariant 10).

#include "tests/tools/daemon.hpp"

namespace kvhive::testing {
namespace {

/// 64 prompts of different lengths; many have the same prefix.
std::vector<GenerateRequest> many_requests() {
  const std::string text = passage();
  std::vector<GenerateRequest> requests;
  for (std::size_t i = 0; i < 64; ++i) {
    const std::size_t start = i % 4 == 0 ? 0 : (i * 37) % 600;
    requests.push_back(request_of(text.substr(start, 150 + (i * 53) % 350),
                                  24 + static_cast<std::uint32_t>(i % 5) * 12));
    if (i % 3 != 1) continue;
    GenerateRequest& sampled = requests.back();  // seeded sampling is repeatable, too
    sampled.temperature = 0.9f;
    sampled.top_k = 40;
    sampled.top_p = 0.95f;
    sampled.seed = i;
  }
  return requests;
}

std::vector<std::vector<TokenId>> tokens_of(const std::vector<Progress>& results) {
  std::vector<std::vector<TokenId>> tokens;
  for (const Progress& result : results) {
    EXPECT_EQ(result.reason, Finish::length) << result.error.text;
    tokens.push_back(ids(result));
  }
  return tokens;
}

std::vector<std::vector<TokenId>> run_at_once(const Daemon& daemon,
                                              std::vector<std::uint32_t> engines) {
  std::vector<Client> clients;
  for (const std::uint32_t engine : engines) clients.push_back(daemon.connect(engine));
  return tokens_of(generate_all(clients, many_requests()));
}

/// The tokens to compare with: requests one after another, nothing cached, nothing preempted.
std::vector<std::vector<TokenId>> one_by_one(const std::string& kv_dtype) {
  const Daemon daemon({"--kv-cache-memory-bytes", "32M", "--enable-prefix-caching", "false",
                       "--kv-cache-dtype", kv_dtype});
  Client client = daemon.connect();
  std::vector<Progress> results;
  for (const GenerateRequest& request : many_requests())
    results.push_back(*client.generate(request));
  return tokens_of(results);
}

const std::vector<std::vector<TokenId>>& undisturbed() {
  static const auto tokens = one_by_one("auto");
  return tokens;
}

TEST(Sharing, AnEngineUsesTheOthersPrefixAndGivesTheSameTokens) {
  std::string text = passage() + passage();
  GenerateRequest request = request_of(text, 32);
  Progress alone;
  {
    const Daemon uncached({"--kv-cache-memory-bytes", "32M", "--enable-prefix-caching", "false"});
    Client client = uncached.connect();
    GenerateRequest sized = request_of(text, 1);
    const Progress sizing = *client.generate(sized);
    ASSERT_GT(sizing.prompt_tokens, 2000u) << "the prompt should have 2,000 tokens";
    alone = *client.generate(request);
    EXPECT_EQ(alone.cached_tokens, 0u);
  }
  const Daemon daemon;
  const Progress first = *daemon.connect(0).generate(request);
  const Progress second = *daemon.connect(1).generate(request);
  EXPECT_EQ(first.cached_tokens, 0u);
  EXPECT_EQ(first.engine, 0u);
  EXPECT_EQ(second.engine, 1u);
  EXPECT_GE(second.cached_tokens, 1984u);
  EXPECT_EQ(second.cached_tokens, (second.prompt_tokens - 1) / 16 * 16)
      << "every full block but the last token's";
  EXPECT_EQ(ids(first), ids(alone));
  EXPECT_EQ(ids(second), ids(alone));
  EXPECT_EQ(second.text, alone.text);
  EXPECT_TRUE(daemon.fsck_is_clean());
}

TEST(Sharing, TokensAreTheSameOneByOneWithTheCacheOn) {
  const Daemon daemon;
  Client client = daemon.connect();
  std::vector<Progress> results;
  for (const GenerateRequest& request : many_requests())
    results.push_back(*client.generate(request));
  EXPECT_EQ(tokens_of(results), undisturbed());
  EXPECT_GT(daemon.stat()["cached_tokens"].get<int>(), 500) << "the cache should have been hit";
}

TEST(Sharing, TokensAreTheSameWithAllRequestsAtOnce) {
  const Daemon daemon({"--kv-cache-memory-bytes", "32M"});
  EXPECT_EQ(run_at_once(daemon, {0}), undisturbed());
  EXPECT_TRUE(daemon.fsck_is_clean());
}

TEST(Sharing, TokensAreTheSameWithAllRequestsAtOnceAndTheCacheOff) {
  const Daemon daemon({"--kv-cache-memory-bytes", "32M", "--enable-prefix-caching", "false"});
  EXPECT_EQ(run_at_once(daemon, {0}), undisturbed());
}

TEST(Sharing, TokensAreTheSameSpreadOverTwoEngines) {
  const Daemon daemon;
  EXPECT_EQ(run_at_once(daemon, {0, 1}), undisturbed());
  EXPECT_TRUE(daemon.fsck_is_clean());
}

TEST(Sharing, TokensAreTheSameWhateverTheStepSize) {
  const Daemon daemon(
      {"--kv-cache-memory-bytes", "32M", "--max-num-batched-tokens", "48", "--max-num-seqs", "7"});
  EXPECT_EQ(run_at_once(daemon, {0}), undisturbed());
}

/// Runs all requests in a pool so small that sequences preempt each other.
void expect_same_tokens_in_a_small_pool(
    std::vector<std::string> flags,
    const std::vector<std::vector<TokenId>>& truth = undisturbed()) {
  flags.insert(flags.end(), {"--num-gpu-blocks-override", "48", "--max-model-len", "512"});
  const Daemon daemon(flags);
  const bool has_two = std::find(flags.begin(), flags.end(), "--engines") != flags.end();
  EXPECT_EQ(run_at_once(daemon,
                        has_two ? std::vector<std::uint32_t>{0, 1} : std::vector<std::uint32_t>{0}),
            truth);
  const std::uint64_t preemptions = daemon.preemptions();
  std::printf("preemptions: %lu\n", preemptions);
  EXPECT_GE(preemptions, 20u);
  EXPECT_TRUE(daemon.fsck_is_clean());
  const Json device = daemon.stat()["tiers"]["device"];
  EXPECT_EQ(device["held"], 0);
  EXPECT_EQ(device["filling"], 0);
}

TEST(Sharing, TokensAreTheSameAfterPreemptionByRecompute) {
  expect_same_tokens_in_a_small_pool({});
}

TEST(Sharing, TokensAreTheSameAfterPreemptionBySwap) {
  expect_same_tokens_in_a_small_pool({"--swap-space", "8M", "--preemption-mode", "swap"});
}

TEST(Sharing, TokensAreTheSameAfterPreemptionBySwapWithTheCacheOff) {
  expect_same_tokens_in_a_small_pool(
      {"--swap-space", "8M", "--preemption-mode", "swap", "--enable-prefix-caching", "false"});
}

TEST(Sharing, TokensAreTheSameWhenTwoEnginesFightForASmallPool) {
  expect_same_tokens_in_a_small_pool({"--engines", "2"});
}

TEST(Sharing, TokensAreTheSameWithKvOf8Bits) {
  // With int8, a swap must copy the scales, too.
  for (const std::string dtype : {"fp8", "fp8_e5m2", "int8"}) {
    SCOPED_TRACE(dtype);
    expect_same_tokens_in_a_small_pool({"--swap-space", "8M", "--preemption-mode", "swap",
                                        "--kv-cache-dtype", dtype, "--engines", "2"},
                                       one_by_one(dtype));
  }
}

}  // namespace
}  // namespace kvhive::testing
