// The daemon with its engines on a (fake) GPU: the same jobs, the same promises.

#include <gmock/gmock.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>

#include "config/exit_codes.hpp"
#include "tests/tools/daemon.hpp"

namespace kvhive::testing {
namespace {

using ::testing::HasSubstr;

const std::vector<std::string> kOnGpu = {
    "--engines",      "2", "--kv-cache-memory-bytes",  "4M", "--max-model-len", "512",
    "--max-num-seqs", "8", "--max-num-batched-tokens", "64", "--device",        "cuda"};

void with_gpu() { setenv("KVHIVE_FAKE_GPU", "", 1); }

TEST(Gpu, TokensAreTheCpusAndTheOtherEnginesHitsToo) {
  const GenerateRequest request = request_of(passage(0, 300), 12);
  std::vector<TokenId> on_cpu;
  {
    const Daemon daemon({"--engines", "1", "--kv-cache-memory-bytes", "4M", "--device", "cpu"});
    on_cpu = ids(*daemon.connect().generate(request));
  }
  for (const char* flag : {"--enforce-eager=false", "--enforce-eager", "--batch-invariant"}) {
    std::vector<std::string> flags = kOnGpu;
    flags.push_back(flag);
    const Daemon daemon(flags, with_gpu);
    const auto first = daemon.connect(0).generate(request);
    ASSERT_TRUE(first) << first.error().text;
    EXPECT_EQ(ids(*first), on_cpu) << flag;
    const auto second = daemon.connect(1).generate(request);
    ASSERT_TRUE(second) << second.error().text;
    EXPECT_EQ(ids(*second), on_cpu) << flag;
    EXPECT_EQ(first->stats.cached_tokens, 0u);
    EXPECT_GE(second->stats.cached_tokens, (second->stats.prompt_tokens - 1) / 16 * 16);
    EXPECT_TRUE(daemon.fsck_is_clean());
  }
}

TEST(Gpu, AnEngineThatIsKilledCostsNoHit) {
  const Daemon daemon(kOnGpu, with_gpu);
  const GenerateRequest request = request_of(passage(0, 200), 4);
  const auto before = daemon.connect(0).generate(request);
  ASSERT_TRUE(before) << before.error().text;
  const pid_t pid = daemon.engine(0)["pid"];
  signal_process(pid, SIGKILL);
  ASSERT_TRUE(eventually(
      [&] {
        const Json engine = daemon.engine(0);
        return !engine.is_null() && engine["pid"] != pid;
      },
      std::chrono::seconds(60)));
  const auto after = daemon.connect(0).generate(request);
  ASSERT_TRUE(after) << after.error().text;
  EXPECT_EQ(ids(*after), ids(*before));
  EXPECT_GE(after->stats.cached_tokens, (after->stats.prompt_tokens - 1) / 16 * 16);
  EXPECT_TRUE(daemon.fsck_is_clean());
}

TEST(Gpu, ALostContextEndsTheEngineAndTheStreamGoesOn) {
  char name[] = "/tmp/kvhive-fault-XXXXXX";
  const std::string directory = mkdtemp(name), fault = directory + "/fault";
  const Daemon daemon(kOnGpu, [&] {
    with_gpu();
    setenv("KVHIVE_FAKE_GPU_FAULT", fault.c_str(), 1);
  });
  const GenerateRequest request = request_of(passage(0, 200), 40);
  const auto expected = daemon.connect(1).generate(request);
  ASSERT_TRUE(expected) << expected.error().text;
  // The next life of engine 0 loses its device in the middle of its first requests.
  const pid_t first = daemon.engine(0)["pid"];
  std::ofstream(fault) << 2000;
  signal_process(first, SIGKILL);
  const auto lives_again_after = [&](pid_t pid) {
    return eventually(
        [&] {
          const Json engine = daemon.engine(0);
          return !engine.is_null() && engine["pid"] != pid;
        },
        std::chrono::seconds(60));
  };
  ASSERT_TRUE(lives_again_after(first));
  const pid_t doomed = daemon.engine(0)["pid"];
  ASSERT_FALSE(std::filesystem::exists(fault));
  Client client = daemon.connect(0);
  for (int i = 0; i < 20 && is_alive(doomed); ++i) {
    const auto result = client.generate(request);
    ASSERT_TRUE(result) << result.error().text;
    EXPECT_EQ(ids(*result), ids(*expected));
  }
  EXPECT_FALSE(is_alive(doomed));
  ASSERT_TRUE(lives_again_after(doomed));
  EXPECT_TRUE(daemon.fsck_is_clean());
  std::filesystem::remove_all(directory);
}

/// Out of the device and back into it, over the swapper's streams.
TEST(Gpu, WhatIsEvictedComesBackFromTheHostTier) {
  const Daemon daemon(
      {"--engines", "1", "--num-gpu-blocks-override", "20", "--swap-space", "4M", "--max-model-len",
       "256", "--max-num-seqs", "4", "--max-num-batched-tokens", "64", "--device", "cuda"},
      with_gpu);
  Client client = daemon.connect();
  const GenerateRequest request = request_of(passage(0, 300), 4);
  const auto before = client.generate(request);
  ASSERT_TRUE(before) << before.error().text;
  for (int i = 1; i <= 4; ++i) ASSERT_TRUE(client.generate(request_of(passage(i * 300, 300), 4)));
  const auto after = client.generate(request);
  ASSERT_TRUE(after) << after.error().text;
  EXPECT_EQ(ids(*after), ids(*before));
  EXPECT_GE(after->stats.cached_tokens, (after->stats.prompt_tokens - 1) / 16 * 16);
  EXPECT_TRUE(daemon.fsck_is_clean());
}

/// Before it is up, not when the first request finds out.
TEST(Gpu, WhatTheKernelsDoNotTakeIsRefusedAtTheStart) {
  char name[] = "/tmp/kvhive-test-XXXXXX";
  const std::filesystem::path directory = mkdtemp(name), model = directory / "wide";
  std::filesystem::create_directory(model);
  for (const auto& file : std::filesystem::directory_iterator(kDemoModel))
    std::filesystem::create_symlink(file.path(), model / file.path().filename());
  std::filesystem::remove(model / "config.json");
  Json config = Json::parse(std::ifstream(std::filesystem::path(kDemoModel) / "config.json"));
  config["torch_dtype"] = "float32";
  std::ofstream(model / "config.json") << config;

  struct Unsupported {
    std::string model, flag, said;
  };
  for (const auto& [of, flag, said] :
       {Unsupported{kDemoModel, "--block-size=24", "block-size: '24'"},
        Unsupported{model, "--batch-invariant", "batch-invariant: products of float32"}}) {
    const CommandResult refused = run("kvhived",
                                      {"--model", of, "--socket", directory / "s", "--device",
                                       "cuda", flag, "--log-level", "error"},
                                      with_gpu);
    EXPECT_EQ(refused.exit_code, 1);
    EXPECT_EQ(std::ranges::count(refused.err, '\n'), 1) << refused.err;
    EXPECT_THAT(refused.err, HasSubstr(said));
    EXPECT_FALSE(std::filesystem::exists(directory / "s"));
  }
  std::filesystem::remove_all(directory);
}

/// Nothing of it is the keeper's to tidy up: descriptors keep the device's memory, and go with it.
TEST(Gpu, AKilledDaemonTakesItsEnginesAlong) {
  Daemon daemon(kOnGpu, with_gpu);
  const pid_t engines[] = {daemon.engine(0)["pid"], daemon.engine(1)["pid"]};
  daemon.kill();
  for (const pid_t engine : engines)
    EXPECT_TRUE(eventually([engine] { return !is_alive(engine); })) << engine;
  EXPECT_TRUE(eventually([&] { return !std::filesystem::exists(daemon.socket()); }));
}

TEST(Gpu, WithoutOneAutoTakesTheCpuSayingSo) {
  const Daemon daemon({"--engines", "1", "--kv-cache-memory-bytes", "4M", "--device", "auto"});
  EXPECT_TRUE(daemon.connect().generate(request_of("In the beginning", 4)));
  const CommandResult refused =
      run("kvhived", {"--model", kDemoModel, "--socket", daemon.directory() + "/other", "--device",
                      "cuda", "--log-level", "error"});
  EXPECT_EQ(refused.exit_code, 1);
  EXPECT_THAT(refused.err, HasSubstr("--device cpu"));
}

}  // namespace
}  // namespace kvhive::testing
