// Bad input. The program prints one line that names the input and the remedy, and its exit code is
// not 0; a daemon goes on.

#include <fstream>

#include "tests/tools/daemon.hpp"

namespace kvhive::testing {
namespace {

namespace fs = std::filesystem;
using ::testing::Test;

void expect_one_line(const CommandResult& result, const std::vector<std::string>& parts) {
  EXPECT_NE(result.exit_code, 0);
  EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
  for (const std::string& part : parts)
    EXPECT_NE(result.err.find(part), std::string::npos) << "'" << part << "' in: " << result.err;
}

/// A scratch directory with a copy of the demo model, which tests change.
class BadStart : public Test {
 protected:
  BadStart() {
    char name[] = "/tmp/kvhive-test-XXXXXX";
    directory_ = mkdtemp(name);
    fs::copy(kDemoModel, directory_ / "model", fs::copy_options::recursive);
  }
  ~BadStart() override { fs::remove_all(directory_); }

  CommandResult start(std::vector<std::string> flags, bool with_model = true) const {
    if (with_model) flags.insert(flags.end(), {"--model", (directory_ / "model").string()});
    flags.insert(flags.end(), {"--socket", (directory_ / "s").string(), "--log-level", "error"});
    return run("kvhived", flags);
  }
  void replace_in_config(const std::string& from, const std::string& to) const {
    std::ifstream in(directory_ / "model/config.json");
    std::string text((std::istreambuf_iterator<char>(in)), {});
    const auto place = text.find(from);
    ASSERT_NE(place, std::string::npos);
    std::ofstream(directory_ / "model/config.json") << text.replace(place, from.size(), to);
  }

  fs::path directory_;
};

TEST_F(BadStart, MissingModelDirectory) {
  expect_one_line(start({"--model", "/nonexistent/model"}, false), {"/nonexistent/model", "give"});
}
TEST_F(BadStart, NoModelAtAll) { expect_one_line(start({}, false), {"model", "--model"}); }
TEST_F(BadStart, ADeviceThatIsUnknownOrNotThere) {
  expect_one_line(start({"--device", "gpu"}), {"device", "'gpu'", "auto", "cpu", "cuda"});
  // What is missing depends on the machine: CUDA in the build, a driver, a GPU, the engine program.
  std::vector<std::string> flags = kSmallPool;
  flags.insert(flags.end(), {"--device", "cuda"});
  expect_one_line(start(flags), {"--device cuda: ", "use --device cpu"});
}
TEST_F(BadStart, TruncatedSafetensors) {
  fs::resize_file(directory_ / "model/model.safetensors", 1'000'000);
  expect_one_line(start(kSmallPool), {"model.safetensors", "tensor", "again"});
}
TEST_F(BadStart, UnknownArchitecture) {
  replace_in_config("LlamaForCausalLM", "FalconForCausalLM");
  expect_one_line(start(kSmallPool), {"FalconForCausalLM", "LlamaForCausalLM"});
}
TEST_F(BadStart, BlockSizeZero) {
  expect_one_line(start({"--block-size", "0"}), {"block-size", "'0'", "16"});
}
TEST_F(BadStart, AQuotaBelowTheSmallestChannel) {
  expect_one_line(start({"--channel-bytes-per-domain", "256"}),
                  {"channel-bytes-per-domain", "'256'", "1.00 MiB"});
}
TEST_F(BadStart, UnknownTomlKey) {
  std::ofstream(directory_ / "c.toml") << "blok-size = 16\n";
  expect_one_line(start({"--config", (directory_ / "c.toml").string()}),
                  {"c.toml", "blok-size", "did you mean 'block-size'"});
}
TEST_F(BadStart, MissingOptionsFile) {
  expect_one_line(start({"--config", "/nonexistent/c.toml"}),
                  {"/nonexistent/c.toml", "does not exist"});
}
TEST_F(BadStart, UnknownFlag) {
  expect_one_line(start({"--blok-size", "16"}), {"blok-size", "did you mean 'block-size'"});
}
TEST_F(BadStart, MemoryLargerThanTheMachine) {
  expect_one_line(start({"--kv-cache-memory-bytes", "900T"}), {"900.00 TiB", "available", "lower"});
}
TEST_F(BadStart, MaxModelLenLargerThanThePool) {
  expect_one_line(start({"--num-gpu-blocks-override", "8", "--max-model-len", "4096"}),
                  {"max-model-len", "at most 112"});
}
TEST_F(BadStart, KvCacheDtypeOfTheFuture) {
  expect_one_line(start({"--kv-cache-dtype", "fp4"}), {"kv-cache-dtype", "fp4", "bfloat16"});
}
TEST_F(BadStart, SwapWithoutSwapSpace) {
  expect_one_line(start({"--preemption-mode", "swap"}), {"preemption-mode", "--swap-space"});
}
TEST_F(BadStart, NoDaemonToTalkTo) {
  expect_one_line(run("kvhive", {"pool", "stat", "--socket", (directory_ / "none").string()}),
                  {"none", "kvhived"});
}

class BadRequest : public Test {
 protected:
  static void SetUpTestSuite() { daemon_ = new Daemon({"--kv-cache-memory-bytes", "32M"}); }
  static void TearDownTestSuite() {
    const CommandResult good = daemon_->cli(
        {"generate", "--prompt", "And God said", "--max-tokens", "4", "--format", "json"});
    EXPECT_EQ(good.exit_code, 0) << "the daemon should be unharmed: " << good.err;
    EXPECT_EQ(daemon_->procs()["engines"][0]["restarts"], 0);
    delete daemon_;
  }
  static CommandResult generate(std::vector<std::string> flags) {
    flags.insert(flags.begin(), "generate");
    return daemon_->cli(flags);
  }
  static inline Daemon* daemon_ = nullptr;
};

TEST_F(BadRequest, SecondDaemonOnTheSameSocket) {
  expect_one_line(run("kvhived", {"--model", kDemoModel, "--socket", daemon_->socket(),
                                  "--log-level", "error"}),
                  {daemon_->socket(), "another daemon", "--socket"});
}
TEST_F(BadRequest, AttachingWithAnotherModelsFingerprint) {
  char name[] = "/tmp/kvhive-test-XXXXXX";
  const fs::path other = mkdtemp(name);
  fs::copy(kDemoModel, other / "other", fs::copy_options::recursive);
  std::fstream weights(other / "other/model.safetensors",
                       std::ios::in | std::ios::out | std::ios::binary);
  weights.seekp(-2, std::ios::end);
  weights.put('\x01');
  weights.close();
  expect_one_line(run("kvhive-engine", {"--model", (other / "other").string(), "--socket",
                                        daemon_->socket(), "--log-level", "off"}),
                  {"fingerprint", "demo", "other", "the daemon's model"});
  fs::remove_all(other);
}
TEST_F(BadRequest, PromptLongerThanTheModel) {
  std::string prompt;
  for (int i = 0; i < 3000; ++i) prompt += "Abraham begat ";
  expect_one_line(generate({"--prompt", prompt}), {"tokens", "4096", "shorten"});
}
TEST_F(BadRequest, EmptyPrompt) {
  expect_one_line(generate({"--prompt", ""}), {"empty", "--prompt"});
}
TEST_F(BadRequest, InvalidUtf8) {
  expect_one_line(generate({"--prompt", "abc\xff\xfe"}), {"UTF-8", "byte 3"});
}
TEST_F(BadRequest, MaxTokensZero) {
  expect_one_line(generate({"--prompt", "a", "--max-tokens", "0"}), {"--max-tokens", "at least 1"});
}
TEST_F(BadRequest, TokenIdOutsideTheVocabulary) {
  expect_one_line(generate({"--prompt-tokens", "1,99999"}), {"99999", "2048"});
}
TEST_F(BadRequest, EngineThatDoesNotExist) {
  expect_one_line(generate({"--prompt", "a", "--engine", "7"}), {"engine 7", "kvhive pool procs"});
}
TEST_F(BadRequest, NegativeTemperature) {
  expect_one_line(generate({"--prompt", "a", "--temperature", "-1"}), {"temperature", "-1"});
}
TEST_F(BadRequest, MissingPromptFile) {
  expect_one_line(generate({"--prompt-file", "/nonexistent.txt"}),
                  {"/nonexistent.txt", "--prompt-file"});
}

}  // namespace
}  // namespace kvhive::testing
