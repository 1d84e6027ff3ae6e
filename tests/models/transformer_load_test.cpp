// Model directories that do not fit together.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "models/transformer.hpp"
#include "tests/models/golden.hpp"
#include "tests/support/temp_directory.hpp"

namespace kvhive {
namespace {

using testing::HasSubstr;

std::string error_with(const char* model, const nlohmann::json& changes) {
  const TempDirectory directory(kGolden / model);
  auto config = nlohmann::json::parse(directory.read("config.json"));
  config.update(changes);
  directory.write("config.json", config.dump());
  const auto loaded = Transformer::load(directory.path());
  return loaded ? "no error" : loaded.error().text;
}

TEST(TransformerLoad, ReportsProgressUpToTheTotal) {
  std::vector<std::size_t> done;
  std::size_t all = 0;
  const auto loaded = Transformer::load(kGolden / "qwen2", [&](std::size_t now, std::size_t total) {
    done.push_back(now);
    all = total;
  });
  ASSERT_TRUE(loaded) << loaded.error().text;
  EXPECT_EQ(all, 2u + 2 * (9 + 3) + 1);
  EXPECT_EQ(done.size(), all);
  EXPECT_EQ(done.back(), all);
}

TEST(TransformerLoad, WrongShapesNameTheTensorAndBothShapes) {
  const auto text = error_with("llama2", {{"intermediate_size", 64}});
  EXPECT_THAT(text, HasSubstr("model.layers.0.mlp.gate_proj.weight"));
  EXPECT_THAT(text, HasSubstr("[48, 32], expected [64, 32]"));
  EXPECT_THAT(error_with("llama2", {{"vocab_size", 100}}), HasSubstr("model.embed_tokens.weight"));
  EXPECT_THAT(error_with("llama3", {{"num_key_value_heads", 4}}), HasSubstr("k_proj"));
}

TEST(TransformerLoad, MissingTensorsAreNamed) {
  EXPECT_THAT(error_with("llama2", {{"num_hidden_layers", 3}}),
              HasSubstr("model.layers.2.input_layernorm.weight"));
  EXPECT_THAT(error_with("llama2", {{"attention_bias", true}}), HasSubstr("q_proj.bias"));
  EXPECT_THAT(error_with("llama3", {{"tie_word_embeddings", false}}), HasSubstr("lm_head.weight"));
  EXPECT_THAT(error_with("llama2", {{"architectures", {"Qwen3ForCausalLM"}}, {"head_dim", 8}}),
              HasSubstr("q_norm"));
}

TEST(TransformerLoad, ATruncatedShardIsNamed) {
  const TempDirectory directory(kGolden / "qwen2");
  const std::string shard = "model-00002-of-00003.safetensors";
  const auto content = directory.read(shard);
  directory.write(shard, content.substr(0, content.size() - 1));
  EXPECT_THAT(Transformer::load(directory.path()).error().text, HasSubstr(shard));
}

TEST(TransformerLoad, NoDirectoryIsNotFound) {
  EXPECT_EQ(Transformer::load("/nonexistent").error().code, Errc::not_found);
}

}  // namespace
}  // namespace kvhive
