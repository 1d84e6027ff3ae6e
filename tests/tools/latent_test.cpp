// Whole daemons with a model of latent attention (tests/models/golden): shared, preempted, swapped,
// after a death, with both kinds of rows, the tokens are the same.

#include <gmock/gmock.h>

#include <filesystem>

#include "tests/support/child_process.hpp"
#include "tests/support/temp_directory.hpp"
#include "tests/tools/daemon.hpp"
#include "tests/tools/whole_answers.hpp"

namespace kvhive::testing {
namespace {

using ::testing::HasSubstr;

const std::filesystem::path kLatentModel =
    std::filesystem::path(KVHIVE_GOLDEN_DIR) / "deepseek_v2_lite";

/// The model with the demo's tokenizer, whose first tokens it knows: requests are of tokens.
class LatentModel {
 public:
  LatentModel() {
    for (const char* name : {"config.json", "model.safetensors"})
      std::filesystem::copy_file(kLatentModel / name, directory_.path() / name);
    for (const char* name : {"tokenizer.json", "tokenizer_config.json"})
      std::filesystem::copy_file(std::filesystem::path(kDemoModel) / name,
                                 directory_.path() / name);
  }
  std::string path() const { return directory_.path().string(); }

 private:
  TempDirectory directory_;
};

/// Prompts of 20 to 90 tokens; those of a third of the requests begin alike.
std::vector<GenerateRequest> requests() {
  std::vector<GenerateRequest> all;
  for (std::size_t i = 0; i < 24; ++i) {
    GenerateRequest request;
    for (std::size_t t = 0; t < 20 + i * 29 % 71; ++t)
      request.prompt_tokens.push_back(TokenId(3 + (i % 3 * 31 + t * t * 7 + t * (i / 12)) % 90));
    request.max_tokens = 16 + i % 4 * 5;
    request.ignore_eos = true;
    all.push_back(std::move(request));
  }
  return all;
}

Tokens at_once(const Daemon& daemon) { return tokens_at_once(daemon, requests()); }

/// One request after another, nothing cached.
Tokens one_by_one(const std::string& model, const std::string& rows) {
  const Daemon daemon({"--model", model, "--kv-cache-memory-bytes", "32M", "--kv-cache-dtype", rows,
                       "--enable-prefix-caching", "false"});
  return tokens_one_by_one(daemon, requests());
}

void expect_same_tokens_everywhere(const std::string& rows) {
  const LatentModel model;
  const Tokens expected = one_by_one(model.path(), rows);
  const auto with = [&](std::vector<std::string> options) {
    options.insert(options.end(),
                   {"--model", model.path(), "--engines", "2", "--kv-cache-dtype", rows});
    return options;
  };
  {
    SCOPED_TRACE("two engines, everything cached the second time");
    const Daemon daemon(with({"--kv-cache-memory-bytes", "32M"}));
    EXPECT_EQ(at_once(daemon), expected);
    EXPECT_EQ(at_once(daemon), expected);
    EXPECT_GT(daemon.stat()["hit_blocks"].get<int>(), 24);
    EXPECT_TRUE(daemon.fsck_is_clean());
  }
  {
    SCOPED_TRACE("a pool that is too small, preemption by swap");
    const Daemon daemon(
        with({"--num-gpu-blocks-override", "24", "--swap-space", "8M", "--preemption-mode", "swap",
              "--max-model-len", "128", "--max-num-batched-tokens", "64", "--max-num-seqs", "12"}));
    EXPECT_EQ(at_once(daemon), expected);
    EXPECT_EQ(at_once(daemon), expected);
    EXPECT_GT(daemon.preemptions(), 0u);
    EXPECT_TRUE(daemon.fsck_is_clean());
  }
  {
    SCOPED_TRACE("an engine is killed");
    const Daemon daemon(with({"--kv-cache-memory-bytes", "32M"}));
    std::vector<Client> clients;
    clients.push_back(daemon.connect());
    ChildProcess killer = killer_of_running_engine(daemon);
    EXPECT_EQ(tokens_of(generate_all(clients, requests())), expected);
    killer.kill_and_wait();
    EXPECT_TRUE(eventually([&] { return daemon.fsck_is_clean(); }));
  }
}

TEST(Latents, RowsOfBf16GiveTheSameTokensEverywhere) { expect_same_tokens_everywhere("auto"); }
TEST(Latents, RowsOfFp8GiveTheSameTokensEverywhere) { expect_same_tokens_everywhere("fp8"); }

TEST(Latents, ADaemonOutlivesItsKeeperWithLatentRows) {
  const LatentModel model;
  const Daemon daemon({"--model", model.path(), "--kv-cache-memory-bytes", "32M"});
  Client client = daemon.connect();
  const GenerateRequest request = requests().front();
  const auto expected = ids(*client.generate(request));
  daemon.kill_keeper();
  // A new engine says hello with latent rows, and the successor knows them from the ledger.
  signal_process(daemon.engine(0)["pid"].get<pid_t>(), SIGKILL);
  EXPECT_EQ(ids(*client.generate(request)), expected);
}

TEST(Latents, LayoutShowsRowsAndWhatASequenceTakes) {
  const std::vector<std::string> command{
      "layout",       "--model", kLatentModel.string(), "--kv-cache-memory-bytes", "4M",
      "--swap-space", "0"};
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
  const LatentModel model;
  const TempDirectory directory;
  const CommandResult refused =
      run("kvhived", {"--model", model.path(), "--kv-cache-dtype", "int8", "--socket",
                      (directory.path() / "s").string(), "--kv-cache-memory-bytes", "4M"});
  EXPECT_NE(refused.exit_code, 0);
  EXPECT_THAT(refused.err, HasSubstr("keeps latent rows"));
}

}  // namespace
}  // namespace kvhive::testing
