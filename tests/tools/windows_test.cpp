// Whole daemons with models that have windows: alone, shared, preempted, swapped, after a death,
// the tokens are the same.

#include <gmock/gmock.h>

#include <map>

#include "tests/tools/whole_answers.hpp"
#include "tests/tools/windowed_models.hpp"

namespace kvhive::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::SizeIs;

/// The answers outlast a window of 64 tokens.
std::vector<GenerateRequest> window_requests() { return overlapping_requests(24, 40, 20); }

Tokens unshared_tokens(const std::string& model) {
  const Daemon daemon(
      {"--model", model, "--kv-cache-memory-bytes", "32M", "--enable-prefix-caching", "false"});
  return tokens_one_by_one(daemon, window_requests());
}

Tokens windows_at_once(const Daemon& daemon) { return tokens_at_once(daemon, window_requests()); }

void expect_same_window_tokens(const std::string& model) {
  const Tokens expected = unshared_tokens(model);
  {
    SCOPED_TRACE("two engines, everything cached the second time");
    const Daemon daemon({"--model", model, "--engines", "2", "--kv-cache-memory-bytes", "32M"});
    EXPECT_EQ(windows_at_once(daemon), expected);
    EXPECT_EQ(windows_at_once(daemon), expected);
    EXPECT_GT(daemon.stat()["hit_blocks"].get<int>(), 24 * 5);
    EXPECT_TRUE(daemon.fsck_is_clean());
  }
  for (const char* mode : {"recompute", "swap"}) {
    SCOPED_TRACE(std::string("a pool that is too small, preemption by ") + mode);
    const Daemon daemon({"--model", model, "--engines", "2", "--num-gpu-blocks-override", "90",
                         "--swap-space", "8M", "--preemption-mode", mode, "--max-model-len", "512",
                         "--max-num-batched-tokens", "64", "--max-num-seqs", "12"});
    EXPECT_EQ(windows_at_once(daemon), expected);
    EXPECT_EQ(windows_at_once(daemon), expected);
    EXPECT_GT(daemon.preemptions(), 0u);
    EXPECT_TRUE(daemon.fsck_is_clean());
  }
  {
    SCOPED_TRACE("an engine is killed");
    const Daemon daemon({"--model", model, "--engines", "2", "--kv-cache-memory-bytes", "32M"});
    EXPECT_EQ(tokens_beside_a_death(daemon, window_requests()), expected);
  }
}

TEST(Windows, OneWindowForAllLayersGivesTheSameTokensEverywhere) {
  expect_same_window_tokens(WindowedModel::mistral(64).path());
}

TEST(Windows, FullAndSlidingLayersGiveTheSameTokensEverywhere) {
  expect_same_window_tokens(WindowedModel::qwen(64, 1).path());
}

/// 2,000 tokens are 125 blocks; 40 are enough for a window of 64 and steps of 128.
TEST(Windows, ARequestMayBeMuchLongerThanThePool) {
  const WindowedModel model = WindowedModel::mistral(64);
  const Daemon daemon({"--model", model.path(), "--num-gpu-blocks-override", "40",
                       "--max-num-batched-tokens", "128", "--max-model-len", "4000"});
  Client client = daemon.connect();
  const Progress result = *client.generate(request_of(passage() + passage(), 64));
  EXPECT_EQ(result.reason, Finish::length) << result.error.text;
  EXPECT_GT(result.prompt_tokens, 2000u);
  EXPECT_TRUE(daemon.fsck_is_clean());
}

TEST(Windows, TheTokensAreTheSameHoweverManyBlocksAreKept) {
  const WindowedModel model = WindowedModel::qwen(64, 1);
  const Tokens expected = unshared_tokens(model.path());
  for (const char* interval : {"0", "64", "dense"}) {
    SCOPED_TRACE(interval);
    const Daemon daemon({"--model", model.path(), "--engines", "2", "--kv-cache-memory-bytes",
                         "32M", "--prefix-cache-retention-interval", interval});
    EXPECT_EQ(windows_at_once(daemon), expected);
    EXPECT_EQ(windows_at_once(daemon), expected);
    EXPECT_TRUE(daemon.fsck_is_clean());
  }
}

TEST(Windows, AnIntervalOfPartsOfBlocksIsRefused) {
  const WindowedModel model = WindowedModel::qwen(64, 1);
  const TempDirectory directory;
  const CommandResult refused = run(
      "kvhived", {"--model", model.path(), "--kv-cache-memory-bytes", "32M", "--socket",
                  (directory.path() / "s").string(), "--prefix-cache-retention-interval", "40"});
  EXPECT_NE(refused.exit_code, 0);
  EXPECT_THAT(refused.err, HasSubstr("prefix-cache-retention-interval: '40' must be a multiple of "
                                     "the 16 tokens of a block"));
}

TEST(Windows, ToolsNameTheGroups) {
  const WindowedModel model = WindowedModel::qwen(64, 1);
  const Daemon daemon({"--model", model.path(), "--kv-cache-memory-bytes", "32M"});
  Client client = daemon.connect();
  const std::string prompt = passage(0, 700);
  ASSERT_EQ(client.generate(request_of(prompt, 8))->reason, Finish::length);
  // Layer 0 sees everything; 1, 2 and 3 have groups of one layer each.
  std::map<int, int> blocks;
  for (const Json& block :
       daemon.cli({"pool", "blocks", "--limit", "1000", "--format", "json"}).json())
    if (block["state"] == "idle") ++blocks[block["group"].get<int>()];
  EXPECT_THAT(blocks, SizeIs(4));

  const Json why = daemon.cli({"pool", "why", "--prompt", prompt, "--format", "json"}).json();
  EXPECT_GT(why["cached_blocks"].get<int>(), 8);
  EXPECT_EQ(why["blocks"].back()["group"], 3);
  EXPECT_THAT(daemon.cli({"pool", "why", "--prompt", prompt}).out, HasSubstr("group"));

  const CommandResult layout =
      run("kvhive", {"layout", "--model", model.path(), "--kv-cache-memory-bytes", "32M"});
  EXPECT_THAT(layout.out, HasSubstr("1 of full attention, 3 of sliding window of 64"));
  EXPECT_THAT(layout.out, HasSubstr("blocks of one such request"));
}

}  // namespace
}  // namespace kvhive::testing
