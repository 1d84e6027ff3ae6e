// Whole daemons with a model of latent attention (tests/models/golden): shared, preempted, swapped,
// after a death, with both kinds of rows, the tokens are the same.

#include <gmock/gmock.h>

#include "tests/support/temp_directory.hpp"
#include "tests/tools/golden_model.hpp"

namespace kvhive::testing {
namespace {

using ::testing::HasSubstr;

constexpr const char* kLatentModel = "deepseek_v2_lite";

void expect_same_tokens_of_rows(const std::string& rows) {
  testing::expect_same_tokens_everywhere(kLatentModel,
                                         {.small_pool = 24, .options = {"--kv-cache-dtype", rows}});
}

TEST(Latents, RowsOfBf16GiveTheSameTokensEverywhere) { expect_same_tokens_of_rows("auto"); }
TEST(Latents, RowsOfFp8GiveTheSameTokensEverywhere) { expect_same_tokens_of_rows("fp8"); }

TEST(Latents, ADaemonOutlivesItsKeeperWithLatentRows) {
  const GoldenModel model(kLatentModel);
  const Daemon daemon({"--model", model.path(), "--kv-cache-memory-bytes", "32M"});
  Client client = daemon.connect();
  const GenerateRequest request = golden_requests().front();
  const auto expected = ids(*client.generate(request));
  daemon.kill_keeper();
  // A new engine says hello with latent rows, and the successor knows them from the ledger.
  signal_process(daemon.engine(0)["pid"].get<pid_t>(), SIGKILL);
  EXPECT_EQ(ids(*client.generate(request)), expected);
}

TEST(Latents, LayoutShowsRowsAndWhatASequenceTakes) {
  const GoldenModel model(kLatentModel);
  const std::vector<std::string> command{
      "layout", "--model", model.path(), "--kv-cache-memory-bytes", "4M", "--swap-space", "0"};
  const auto layout = [&](std::vector<std::string> more) {
    more.insert(more.begin(), command.begin(), command.end());
    return run("kvhive", more);
  };
  const Json bf16 = layout({"--format", "json"}).json();
  EXPECT_EQ(bf16["kind"], "latent");
  EXPECT_EQ(bf16["page_bytes"], 16 * 1152);
  EXPECT_EQ(bf16["block_bytes"], 2 * 16 * 1152);
  EXPECT_EQ(bf16["bytes_of_longest_request"], 128 / 16 * 2 * 16 * 1152);
  const Json fp8 = layout({"--format", "json", "--kv-cache-dtype", "fp8"}).json();
  EXPECT_EQ(fp8["page_bytes"], 16 * 656);
  EXPECT_THAT(layout({}).out, HasSubstr("2 x 512 + 64, bfloat16, 1152 B"));
  const CommandResult refused = layout({"--kv-cache-dtype", "float32"});
  EXPECT_NE(refused.exit_code, 0);
  EXPECT_THAT(refused.err, HasSubstr("keeps latent rows"));
}

TEST(Latents, ADaemonRefusesRowsThatThereAreNot) {
  const GoldenModel model(kLatentModel);
  const TempDirectory directory;
  const CommandResult refused =
      run("kvhived", {"--model", model.path(), "--kv-cache-dtype", "int8", "--socket",
                      (directory.path() / "s").string(), "--kv-cache-memory-bytes", "4M"});
  EXPECT_NE(refused.exit_code, 0);
  EXPECT_THAT(refused.err, HasSubstr("keeps latent rows"));
}

}  // namespace
}  // namespace kvhive::testing
