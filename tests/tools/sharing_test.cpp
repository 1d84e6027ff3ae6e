// One engine uses the blocks that the other computed, and the tokens are the same as without
// sharing (invariant 10).

#include "tests/tools/daemon.hpp"

namespace kvhive::testing {
namespace {

constexpr std::size_t kMany = 64;

/// Prompts of different lengths; many have the same prefix.
std::vector<GenerateRequest> many_requests(std::size_t count = kMany) {
  const std::string text = passage();
  std::vector<GenerateRequest> requests;
  for (std::size_t i = 0; i < count; ++i) {
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

std::vector<std::vector<TokenId>> run_at_once(const Daemon& daemon, std::uint32_t engines,
                                              std::size_t count = kMany) {
  std::vector<Client> clients;
  for (std::uint32_t engine = 0; engine < engines; ++engine)
    clients.push_back(daemon.connect(engine));
  return tokens_of(generate_all(clients, many_requests(count)));
}

/// The tokens to compare with: requests one after another, nothing cached, nothing preempted.
std::vector<std::vector<TokenId>> one_by_one(const std::string& kv_dtype,
                                             std::size_t count = kMany) {
  const Daemon daemon({"--kv-cache-memory-bytes", "32M", "--enable-prefix-caching", "false",
                       "--kv-cache-dtype", kv_dtype});
  Client client = daemon.connect();
  std::vector<Progress> results;
  for (const GenerateRequest& request : many_requests(count))
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

void expect_same_tokens_at_once(const std::vector<std::string>& flags, std::uint32_t engines = 1) {
  SCOPED_TRACE(::testing::PrintToString(flags));
  const Daemon daemon(flags);
  EXPECT_EQ(run_at_once(daemon, engines), undisturbed());
  EXPECT_TRUE(daemon.fsck_is_clean());
}

TEST(Sharing, TokensAreTheSameWithAllRequestsAtOnce) {
  const std::vector<std::string> large = {"--kv-cache-memory-bytes", "32M"};
  const auto with = [&large](std::vector<std::string> flags) {
    flags.insert(flags.end(), large.begin(), large.end());
    return flags;
  };
  expect_same_tokens_at_once(large);
  expect_same_tokens_at_once(with({"--enable-prefix-caching", "false"}));
  expect_same_tokens_at_once(with({"--max-num-batched-tokens", "48", "--max-num-seqs", "7"}));
  expect_same_tokens_at_once(with({"--engines", "2"}), 2);
}

/// In a pool so small that sequences preempt each other.
void expect_same_tokens_in_a_small_pool(
    std::vector<std::string> flags,
    const std::vector<std::vector<TokenId>>& truth = undisturbed()) {
  SCOPED_TRACE(::testing::PrintToString(flags));
  const bool has_two = std::find(flags.begin(), flags.end(), "--engines") != flags.end();
  flags.insert(flags.end(), {"--num-gpu-blocks-override", "48", "--max-model-len", "512"});
  const Daemon daemon(flags);
  EXPECT_EQ(run_at_once(daemon, has_two ? 2 : 1, truth.size()), truth);
  const std::uint64_t preemptions = daemon.preemptions();
  std::printf("preemptions: %lu\n", preemptions);
  EXPECT_GE(preemptions, 3u) << "how many there are depends on who computes when; 7 were seen";
  EXPECT_TRUE(daemon.fsck_is_clean());
  EXPECT_TRUE(eventually([&] { return daemon.nothing_is_held(); }));
}

TEST(Sharing, TokensAreTheSameAfterPreemption) {
  expect_same_tokens_in_a_small_pool({});
  for (const char* mode : {"swap", "auto"})
    expect_same_tokens_in_a_small_pool({"--swap-space", "8M", "--preemption-mode", mode});
  expect_same_tokens_in_a_small_pool(
      {"--swap-space", "8M", "--preemption-mode", "swap", "--enable-prefix-caching", "false"});
  expect_same_tokens_in_a_small_pool({"--engines", "2"});
}

TEST(Sharing, TokensAreTheSameWithKvOf8Bits) {
  // With int8, a swap must copy the scales, too.
  for (const std::string dtype : {"fp8", "fp8_e5m2", "int8"})
    expect_same_tokens_in_a_small_pool({"--swap-space", "8M", "--preemption-mode", "swap",
                                        "--kv-cache-dtype", dtype, "--engines", "2"},
                                       one_by_one(dtype, 28));
}

}  // namespace
}  // namespace kvhive::testing
