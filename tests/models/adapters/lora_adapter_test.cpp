#include "models/adapters/lora_adapter.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <omp.h>

#include "models/activations.hpp"
#include "tests/models/adapters/adapted.hpp"

namespace kvhive {
namespace {

using Json = nlohmann::json;
using ::testing::HasSubstr;

class LoraAdapterTest : public ::testing::Test {
 protected:
  Transformer llama_ = Transformer::load(kGolden / "llama2").value();
  const std::vector<TokenId> tokens_ = read_golden("llama2").tokens;
};

TEST_F(LoraAdapterTest, LogitsAreThoseOfMergedWeights) {
  for (const auto& targets : {kAllMatrices, std::vector<std::string>{"q_proj", "v_proj"}}) {
    const Adapter adapter(3, 4, 8, targets);
    ASSERT_EQ(llama_.add_adapter(adapter.path()).value() % 2, targets == kAllMatrices ? 0 : 1);
    const TempDirectory merged(kGolden / "llama2");
    adapter.merge_into(merged);
    auto model = Transformer::load(merged.path()).value();
    const auto expected = logits_of(model, -1, tokens_);
    const auto plain = logits_of(llama_, -1, tokens_);
    const auto adapted = logits_of(llama_, targets == kAllMatrices ? 0 : 1, tokens_);
    EXPECT_LT(relative_error(adapted, expected), 1e-5);
    EXPECT_GT(relative_error(plain, expected), 1e-2)
        << "an adapter that does nothing shows nothing";
  }
}

class LoraOfFamily : public ::testing::TestWithParam<const char*> {};

/// All that may be adapted: not what belongs to experts, nor what latent attention absorbs.
TEST_P(LoraOfFamily, LogitsAreThoseOfMergedWeights) {
  const std::string name = GetParam();
  const Adapter adapter(
      3, 4, 8,
      {"q_proj", "k_proj", "v_proj", "o_proj", "q_a_proj", "q_b_proj", "kv_a_proj_with_mqa",
       "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj", "feed_forward.gate_proj",
       "feed_forward.up_proj", "feed_forward.down_proj"},
      name);
  const TempDirectory alone(kGolden / name), merged(kGolden / name);
  widen_weights(alone);
  widen_weights(merged);
  adapter.merge_into(merged);
  auto plain = Transformer::load(alone.path()).value();
  const auto added = plain.add_adapter(adapter.path());
  ASSERT_TRUE(added.has_value()) << added.error().text;
  auto model = Transformer::load(merged.path()).value();
  const auto tokens = read_golden(name).tokens;
  const auto expected = logits_of(model, -1, tokens);
  // Rows of bf16: f32 rounds a few elements the other way.
  EXPECT_LT(relative_error(logits_of(plain, *added, tokens), expected),
            plain.config().is_latent() ? 1e-3 : 1e-5);
  EXPECT_GT(relative_error(logits_of(plain, -1, tokens), expected), 1e-2);
}

INSTANTIATE_TEST_SUITE_P(Families, LoraOfFamily,
                         ::testing::Values("llama3", "mistral", "qwen2", "qwen3", "qwen3_moe",
                                           "gemma2", "gemma3", "deepseek_v2", "deepseek_v2_lite",
                                           "llama4"),
                         [](const auto& family) { return std::string(family.param); });

/// kv_b_proj is absorbed, so it has no product that an adapter could be added to.
TEST(LoraOfLatents, LogitsAreThoseOfMergedWeightsAndTheAbsorbedMatrixIsRefused) {
  const std::string name = "deepseek_v2_lite";
  auto plain = Transformer::load(kGolden / name).value();
  const auto tokens = read_golden(name).tokens;
  const Adapter adapter(3, 4, 8, {"self_attn.q_proj", "kv_a_proj_with_mqa", "o_proj"}, name);
  ASSERT_EQ(plain.add_adapter(adapter.path()).value(), 0);
  const TempDirectory merged(kGolden / name);
  adapter.merge_into(merged);
  auto model = Transformer::load(merged.path()).value();
  const auto expected = logits_of(model, -1, tokens);
  // Rows of bf16: f32 rounds a few elements the other way.
  EXPECT_LT(relative_error(logits_of(plain, 0, tokens), expected), 1e-3);
  EXPECT_GT(relative_error(logits_of(plain, -1, tokens), expected), 1e-2);
  const auto refused = plain.add_adapter(Adapter(3, 4, 8, {"kv_b_proj"}, name).path());
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().text, HasSubstr("kv_b_proj"));
  EXPECT_THAT(refused.error().text, HasSubstr("kv_a_proj_with_mqa"));
}

TEST_F(LoraAdapterTest, RankStabilisedScalesAreDividedByTheRoot) {
  Adapter adapter(3, 4, 8, kAllMatrices);
  adapter.config()["use_rslora"] = true;
  adapter.write();
  ASSERT_EQ(llama_.add_adapter(adapter.path()).value(), 0);
  const Adapter twice(3, 4, 16, kAllMatrices);  // 8 / sqrt(4) = 16 / 4
  ASSERT_EQ(llama_.add_adapter(twice.path()).value(), 1);
  EXPECT_EQ(logits_of(llama_, 0, tokens_), logits_of(llama_, 1, tokens_));
}

/// Sequences with different adapters and without one, side by side and in chunks: each has the bits
/// that it has alone.
TEST_F(LoraAdapterTest, SeveralAdaptersInABatchDoNotChangeBits) {
  const Adapter first(3, 4, 8, kAllMatrices), second(9, 2, 4, {"q_proj", "down_proj"});
  ASSERT_TRUE(llama_.add_adapter(first.path()).has_value());
  ASSERT_TRUE(llama_.add_adapter(second.path()).has_value());
  std::vector<std::vector<float>> alone;
  for (const std::int32_t adapter : {-1, 0, 1})
    alone.push_back(logits_of(llama_, adapter, tokens_));

  AdaptedRunner runner = runner_of(llama_);
  EXPECT_EQ(side_by_side(runner, tokens_), alone);
}

/// More tokens than go through a feed-forward network together, with a part's end in a sequence.
TEST_F(LoraAdapterTest, PartsOfABatchDoNotChangeBits) {
  const Adapter first(3, 4, 8, kAllMatrices), second(9, 2, 4, {"q_proj", "down_proj"});
  ASSERT_TRUE(llama_.add_adapter(first.path()).has_value());
  ASSERT_TRUE(llama_.add_adapter(second.path()).has_value());
  const int before = omp_get_max_threads();
  omp_set_num_threads(2);  // parts grow with them
  std::vector<AdaptedRunner::Feed> feeds;
  for (std::uint32_t block = 0; block < AdaptedRunner::kBlocks; ++block)
    feeds.push_back({block, static_cast<std::int32_t>(block % 3) - 1, tokens_});
  const std::size_t all = feeds.size() * tokens_.size(), part = Activations::inner_rows(all);
  EXPECT_LT(part, all);
  EXPECT_NE(part % tokens_.size(), 0u);
  const auto logits = runner_of(llama_).step(feeds);
  for (const auto& feed : feeds)
    EXPECT_EQ(logits[feed.block], logits_of(llama_, feed.adapter, tokens_)) << feed.block;
  omp_set_num_threads(before);
}

// -- what is refused ------------------------------------------------------------------------------

class RefusedAdapter : public LoraAdapterTest {
 protected:
  std::string error() {
    const auto added = llama_.add_adapter(adapter_.path());
    return added ? "" : added.error().text;
  }
  Adapter adapter_{3, 4, 8, {"q_proj"}};
};

TEST_F(RefusedAdapter, FieldsThatChangeWhatIsComputedAreNamed) {
  EXPECT_EQ(error(), "");
  const Json sound = adapter_.config();
  for (const auto& [field, value] : {std::pair<const char*, Json>{"peft_type", "IA3"},
                                     {"bias", "all"},
                                     {"use_dora", true},
                                     {"fan_in_fan_out", true},
                                     {"modules_to_save", {"lm_head"}},
                                     {"rank_pattern", {{"q_proj", 8}}},
                                     {"lora_alpha", "eight"},
                                     {"r", 0}}) {
    adapter_.config() = sound;
    adapter_.config()[field] = value;
    adapter_.write();
    EXPECT_THAT(error(), HasSubstr(field)) << value;
  }
}

TEST_F(RefusedAdapter, TensorsThatFitNothingAreNamed) {
  adapter_.write([](Tensors& tensors) {
    tensors["base_model.model.lm_head.lora_A.weight"] = {{1, 1}, {0}};
  });
  EXPECT_THAT(error(), HasSubstr("lm_head.lora_A.weight belongs to nothing that kvhive adapts"));
  adapter_.write([](Tensors& tensors) { tensors.erase(tensors.begin()); });
  EXPECT_THAT(error(), HasSubstr("lora_A.weight is missing"));
  adapter_.write([](Tensors& tensors) { std::next(tensors.begin())->second.shape = {4, 32}; });
  EXPECT_THAT(error(), HasSubstr("shape"));
  adapter_.write([](Tensors& tensors) { tensors.clear(); });
  EXPECT_THAT(error(), HasSubstr("has no tensor"));
}

TEST_F(RefusedAdapter, AMissingDirectoryIsNamed) {
  const auto added = llama_.add_adapter("/nowhere");
  ASSERT_FALSE(added.has_value());
  EXPECT_THAT(added.error().text, HasSubstr("/nowhere/adapter_config.json"));
}

}  // namespace
}  // namespace kvhive
