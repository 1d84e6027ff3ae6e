// Adapters on a fake GPU: logits are those of merged weights, and of the CPU; a sequence has the
// same bits alone and beside others, whole and in chunks, by a graph and without.

#include "models/gpu/gpu_adapters.hpp"

#include <gtest/gtest.h>

#include <stdexcept>

#include "models/config/load_model_config.hpp"
#include "tests/models/adapters/adapted.hpp"
#include "tests/models/gpu/gpu_model.hpp"

namespace kvhive {
namespace {

using Paths = std::vector<std::filesystem::path>;
using Feed = AdaptedRunner::Feed;

/// A golden model, or what became of it, with adapters.
class Adapted {
 public:
  explicit Adapted(const std::filesystem::path& directory, const Paths& adapters = {},
                   std::size_t graphs = 32)
      : gpu_(directory,
             {.tokens = 128, .sequences = 4, .logit_rows = 128, .likeliest = 5, .graphs = graphs},
             load_dtype(directory), AdaptedRunner::kBlockSize, AdaptedRunner::kBlocks, false,
             adapters) {}

  AdaptedRunner runner() {
    gpu_.make_arena();
    return {gpu_.config(),
            [this](const ForwardBatch& batch, const KvLayout& layout, std::span<float> logits) {
              const auto done = gpu_.forward(batch, layout);
              if (!done) throw std::runtime_error(done.error().text);
              std::ranges::copy(*done, logits.begin());
            }};
  }
  std::vector<float> logits(std::int32_t adapter, const std::vector<TokenId>& tokens) {
    return runner().step({{0, adapter, tokens}}).front();
  }
  bool is_batch_invariant() const { return gpu_.is_batch_invariant(); }
  TestedDevice& device() { return gpu_.device(); }

 private:
  static Dtype load_dtype(const std::filesystem::path& directory) {
    return AdaptedRunner::layout_of(load_model_config(directory).value()).dtype;
  }

  GpuModel gpu_;
};

TEST(GpuAdapters, LogitsAreThoseOfMergedWeights) {
  const auto tokens = read_golden("llama2").tokens;
  const Adapter all(3, 4, 8, kAllMatrices), some(9, 2, 4, {"q_proj", "down_proj"});
  Adapted model(kGolden / "llama2", {all.path(), some.path()});
  for (const std::int32_t number : {0, 1}) {
    const TempDirectory merged(kGolden / "llama2");
    (number == 0 ? all : some).merge_into(merged);
    const auto expected = Adapted(merged.path()).logits(-1, tokens);
    EXPECT_LT(relative_error(model.logits(number, tokens), expected), 1e-5);
    EXPECT_GT(relative_error(model.logits(-1, tokens), expected), 1e-2);
  }
}

TEST(GpuAdapters, LogitsOfLatentAttentionAreThoseOfMergedWeights) {
  for (const char* const name : {"deepseek_v2_lite", "deepseek_v2"}) {
    const auto tokens = read_golden(name).tokens;
    const bool is_narrow = std::string(name) == "deepseek_v2";  // and in bf16
    const Adapter adapter(
        3, 4, 8,
        {is_narrow ? "q_a_proj" : "self_attn.q_proj", "q_b_proj", "kv_a_proj_with_mqa", "o_proj"},
        name);
    Adapted model(kGolden / name, {adapter.path()});
    auto on_cpu = Transformer::load(kGolden / name).value();
    ASSERT_TRUE(on_cpu.add_adapter(adapter.path()));
    const auto expected = logits_of(on_cpu, 0, tokens);
    EXPECT_LT(relative_error(model.logits(0, tokens), expected), is_narrow ? 6e-2 : 1e-3) << name;
    EXPECT_GT(relative_error(model.logits(-1, tokens), expected), 0.1) << name;
  }
}

/// Sequences with different adapters and without one, side by side and in chunks.
TEST(GpuAdapters, SeveralInABatchDoNotChangeBits) {
  const auto tokens = read_golden("llama3").tokens;
  const Adapter first(3, 4, 8, kAllMatrices, "llama3"),
      second(9, 2, 4, {"q_proj", "down_proj"}, "llama3");
  Adapted model(kGolden / "llama3", {first.path(), second.path()});
  if (!model.is_batch_invariant()) GTEST_SKIP() << "products of the device's library are not";
  std::vector<std::vector<float>> alone;
  for (const std::int32_t adapter : {-1, 0, 1}) alone.push_back(model.logits(adapter, tokens));
  EXPECT_NE(alone[1], alone[0]);
  EXPECT_NE(alone[2], alone[1]);

  AdaptedRunner runner = model.runner();
  EXPECT_EQ(side_by_side(runner, tokens), alone);
}

/// A graph is of rows with adapters or without, whichever adapters they are.
TEST(GpuAdapters, GraphsHaveTheBitsOfTheStepsTheyRecorded) {
  const Adapter first(3, 4, 8, kAllMatrices), second(9, 2, 4, {"q_proj", "down_proj"});
  const Paths both = {first.path(), second.path()};
  std::size_t launched = 0;
  const auto decode = [&](std::size_t graphs) {
    Adapted model(kGolden / "llama2", both, graphs);
    model.device().set_faults({.before_call = [&](std::uint64_t, const char* name) {
      launched += std::string(name) == "launch" ? 1 : 0;
    }});
    AdaptedRunner runner = model.runner();
    std::vector<std::vector<float>> logits;
    for (TokenId token = 1; token < 10; ++token) {
      // Each time the same rows; with adapters but for every third.
      const std::int32_t a = token % 3 == 0 ? -1 : token % 2, b = token % 3 == 0 ? -1 : 1;
      for (auto& row : runner.step({{0, a, {token}}, {1, b, {token}}}))
        logits.push_back(std::move(row));
    }
    return logits;
  };
  const auto eager = decode(0);
  EXPECT_EQ(launched, 0u);
  EXPECT_EQ(decode(32), eager);
  EXPECT_GE(launched, 5u);
}

}  // namespace
}  // namespace kvhive
