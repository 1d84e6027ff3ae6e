#pragma once
// Whole daemons with a small random model (tests/models/golden): shared, preempted, swapped, after
// a death, the tokens are those of each request alone.

#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "tests/support/temp_directory.hpp"
#include "tests/tools/daemon.hpp"
#include "tests/tools/whole_answers.hpp"

namespace kvhive::testing {

/// The model with the demo's tokenizer, whose first tokens it knows: requests are of tokens.
class GoldenModel {
 public:
  explicit GoldenModel(const std::string& name) {
    const std::filesystem::path golden = std::filesystem::path(KVHIVE_GOLDEN_DIR) / name;
    for (const char* file : {"config.json", "model.safetensors"})
      std::filesystem::copy_file(golden / file, directory_.path() / file);
    for (const char* file : {"tokenizer.json", "tokenizer_config.json"})
      std::filesystem::copy_file(std::filesystem::path(kDemoModel) / file,
                                 directory_.path() / file);
  }
  std::string path() const { return directory_.path().string(); }

 private:
  TempDirectory directory_;
};

/// Prompts of 20 to 90 tokens; those of a third of the requests begin alike.
inline std::vector<GenerateRequest> golden_requests() {
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

struct GoldenDaemon {
  int small_pool = 0;  ///< blocks, so few that requests are preempted
  std::vector<std::string> options{};
};

inline void expect_same_tokens_everywhere(const std::string& name, const GoldenDaemon& how) {
  const GoldenModel model(name);
  const auto with = [&](std::vector<std::string> options) {
    options.insert(options.end(), {"--model", model.path()});
    options.insert(options.end(), how.options.begin(), how.options.end());
    return options;
  };
  const auto at_once = [](const Daemon& daemon) {
    return tokens_at_once(daemon, golden_requests());
  };
  const Tokens expected = tokens_one_by_one(
      Daemon(with({"--kv-cache-memory-bytes", "32M", "--enable-prefix-caching", "false"})),
      golden_requests());
  {
    SCOPED_TRACE("two engines, everything cached the second time");
    const Daemon daemon(with({"--engines", "2", "--kv-cache-memory-bytes", "32M"}));
    EXPECT_EQ(at_once(daemon), expected);
    EXPECT_EQ(at_once(daemon), expected);
    EXPECT_GT(daemon.stat()["hit_blocks"].get<int>(), 24);
    EXPECT_TRUE(daemon.fsck_is_clean());
  }
  for (const char* mode : {"recompute", "swap"}) {
    SCOPED_TRACE(std::string("a pool that is too small, preemption by ") + mode);
    const Daemon daemon(
        with({"--engines", "2", "--num-gpu-blocks-override", std::to_string(how.small_pool),
              "--swap-space", "8M", "--preemption-mode", mode, "--max-model-len", "128",
              "--max-num-batched-tokens", "64", "--max-num-seqs", "12"}));
    EXPECT_EQ(at_once(daemon), expected);
    EXPECT_EQ(at_once(daemon), expected);
    EXPECT_GT(daemon.preemptions(), 0u);
    EXPECT_TRUE(daemon.fsck_is_clean());
  }
  {
    SCOPED_TRACE("an engine is killed");
    const Daemon daemon(with({"--engines", "2", "--kv-cache-memory-bytes", "32M"}));
    EXPECT_EQ(tokens_beside_a_death(daemon, golden_requests()), expected);
  }
}

}  // namespace kvhive::testing
