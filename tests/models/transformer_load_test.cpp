// Model directories that do not fit together.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <span>

#include "models/config/load_model_config.hpp"
#include "models/transformer.hpp"
#include "models/transformer_weights.hpp"
#include "tests/models/golden.hpp"
#include "tests/models/model_changes.hpp"
#include "tests/models/paged_runner.hpp"
#include "tests/support/temp_directory.hpp"

namespace kvhive {
namespace {

using nlohmann::json;
using testing::HasSubstr;

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

TEST(TransformerLoad, CountsTheWeightsThatAreNotPagesOfTheFiles) {
  const auto bytes = [](const char* model) {
    return Transformer::load(kGolden / model).value().private_weight_bytes();
  };
  EXPECT_EQ(bytes("llama2"), 0u);
  EXPECT_EQ(bytes("qwen3_moe"), 0u);
  EXPECT_EQ(bytes("mistral"), 0u);  // f16, converted in registers
  // Of quantized ones the scales, as floats: here one for each row, of two layers.
  EXPECT_EQ(bytes("fp8_channel"), 4u * 2 * (32 + 16 + 16 + 32 + 48 + 48 + 32));
  // A scale and a zero for 32 columns of a row: of two layers, 64 wide, the inner layer 96.
  EXPECT_EQ(bytes("gptq"), 5u * 2 * 2 * (64 + 32 + 32 + 64 + 96 + 96 + 64 * 3 / 2));
  // And a number for each column.
  constexpr std::size_t kColumns = 6 * 64 + 96;
  EXPECT_EQ(bytes("gptq_act_order"), bytes("gptq") + 4 * 2 * kColumns);
}

/// Else a daemon takes a model whose engines the kernel ends.
TEST(TransformerLoad, KnowsBeforehandWhatItCopies) {
  for (const char* model : {"llama2", "llama4", "mistral", "gemma3", "qwen3_moe", "deepseek_v2",
                            "deepseek_v2_lite", "fp8_tensor", "fp8_channel", "fp8_block", "gptq",
                            "gptq_act_order", "awq", "w4a16", "w4a16_zeros", "w8a8"}) {
    const auto directory = kGolden / model;
    const auto files = SafetensorsDirectory::open(directory);
    EXPECT_EQ(TransformerWeights::bytes_to_copy(*files, *load_model_config(directory)),
              Transformer::load(directory)->private_weight_bytes())
        << model;
  }
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

/// As published, and as transformers writes it today.
TEST(TransformerLoad, TheTextPartOfAMultimodalModelIsThatModel) {
  using Renamed = std::vector<std::pair<std::string, std::string>>;
  for (const Renamed& names : {Renamed{{"\"model.", "\"language_model.model."},
                                       {"\"lm_head.", "\"language_model.lm_head."}},
                               Renamed{{"\"model.", "\"model.language_model."}}}) {
    const TempDirectory directory(kGolden / "llama4");
    for (const auto& [from, to] : names) rename_tensors(directory, from, to);
    json text = json::parse(directory.read("config.json")), whole;
    text.erase("architectures");
    for (const char* const outside : {"torch_dtype", "eos_token_id"}) {
      whole[outside] = text[outside];
      text.erase(outside);
    }
    whole["architectures"] = {"Llama4ForConditionalGeneration"};
    whole["text_config"] = text;
    whole["vision_config"] = {{"hidden_size", 8}};
    directory.write("config.json", whole.dump());
    auto loaded = Transformer::load(directory.path());
    ASSERT_TRUE(loaded) << loaded.error().text;
    EXPECT_EQ(loaded->config().eos, std::vector<TokenId>{2});
    const auto golden = read_golden("llama4");
    PagedRunner runner(*loaded, Dtype::f32, 4, 64, 1);
    EXPECT_LT(
        relative_error(runner.run_chunked(0, golden.tokens, {golden.tokens.size()}), golden.logits),
        1e-5);
  }
}

TEST(TransformerLoad, ScalesForACacheOfFp8AreFoundByAllTheirNames) {
  const auto of = [](const std::filesystem::path& directory) {
    return read_kv_scales(SafetensorsDirectory::open(directory).value(), 1).value();
  };
  const auto known = of(kGolden / "fp8_tensor");
  ASSERT_TRUE(known);
  EXPECT_NEAR(known->k, 1000 * 12 / 448.0, 1e-3);
  EXPECT_NEAR(known->v, 1000 * 8 / 448.0, 1e-3);
  EXPECT_FALSE(of(kGolden / "llama2"));
  const std::pair<const char*, const char*> names[] = {
      {"self_attn.attn.k_scale", "self_attn.attn.v_scale"},
      {"self_attn.k_proj.k_scale", "self_attn.v_proj.v_scale"},
      {"self_attn.k_proj.output_scale", "self_attn.v_proj.output_scale"}};
  for (const auto& [k, v] : names) {
    const TempDirectory directory(kGolden / "fp8_tensor");
    rename_tensors(directory, "self_attn.k_scale", k);
    rename_tensors(directory, "self_attn.v_scale", v);
    const auto found = of(directory.path());
    ASSERT_TRUE(found) << k;
    EXPECT_EQ(found->k, known->k) << k;
    EXPECT_EQ(found->v, known->v) << k;
  }
  const TempDirectory one(kGolden / "fp8_tensor");
  rename_tensors(one, "self_attn.k_scale", "self_attn.kv_scale");
  rename_tensors(one, "self_attn.v_scale", "self_attn.unused");
  EXPECT_EQ(of(one.path())->v, known->k);
}

TEST(TransformerLoad, HalfAPairOfScalesIsAnError) {
  EXPECT_THAT(error_with_renamed("fp8_tensor", "0.self_attn.v_scale", "0.self_attn.x_scale"),
              HasSubstr("model.layers.0.self_attn.v_scale is missing"));
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
