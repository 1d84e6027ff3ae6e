// Checkpoints in codes whose parts do not fit together, or that say less than they might.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "models/config/load_model_config.hpp"
#include "models/transformer_weights.hpp"
#include "tests/models/model_changes.hpp"
#include "tests/models/paged_runner.hpp"

namespace kvhive {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;

const std::string kFirst = "model.layers.0.self_attn.";

/// A config with a field of quantization_config changed; with a group, one of its weights' fields.
json changed_field(const char* model, const char* field, const json& value) {
  auto quantization =
      json::parse(read_text_file(kGolden / model / "config.json").value())["quantization_config"];
  json* fields = &quantization;
  if (quantization.contains("config_groups"))
    fields = &quantization["config_groups"]["group_0"]["weights"];
  (*fields)[field] = value;
  return {{"quantization_config", quantization}};
}

std::string with_field(const char* model, const char* field, const json& value) {
  return error_with(model, changed_field(model, field, value));
}

/// Of the model's own logits.
double error_of_logits(const TempDirectory& directory, const char* model) {
  auto loaded = Transformer::load(directory.path());
  EXPECT_TRUE(loaded) << loaded.error().text;
  if (!loaded) return 1;
  const auto golden = read_golden(model);
  PagedRunner runner(*loaded, Dtype::f32, 4, 64, 1);
  return relative_error(runner.run_chunked(0, golden.tokens, {golden.tokens.size()}),
                        golden.logits);
}

TEST(QuantizedLoad, AQuantizedMatrixNeedsItsScales) {
  EXPECT_THAT(error_with_renamed("fp8_channel", "1.mlp.up_proj.weight_scale", "other"),
              HasSubstr("model.layers.1.mlp.up_proj.weight is F8_E4M3, but there is neither"));
  // The scales of a matrix of another shape.
  EXPECT_THAT(error_with_renamed("fp8_channel", "q_proj.weight_scale", "gate_proj.weight_scale"),
              HasSubstr("q_proj.weight is F8_E4M3"));
  const json blocks{{"quant_method", "fp8"}, {"weight_block_size", {16, 16}}};
  EXPECT_THAT(
      error_with("fp8_channel", {{"quantization_config", blocks}}),
      HasSubstr(
          "weight_scale has shape [32, 1], expected [2, 2], one scale for each block of 16 x 16"));
  EXPECT_THAT(error_with("fp8_channel", {{"quantization_config", nullptr}}),
              HasSubstr("q_proj.weight has dtype F8_E4M3"));
  EXPECT_THAT(error_with("fp8_channel", {{"intermediate_size", 64}}),
              HasSubstr("gate_proj.weight has shape [48, 32], expected [64, 32]"));
}

TEST(QuantizedLoad, PartsOfAMatrixInIntegersMustFitTogether) {
  EXPECT_THAT(error_with_renamed("gptq", "1.mlp.up_proj.scales", "1.mlp.up_proj.other"),
              HasSubstr("1.mlp.up_proj.qweight is there, but model.layers.1.mlp.up_proj.scales"));
  EXPECT_THAT(error_with_renamed("awq", "k_proj.qzeros", "k_proj.other"),
              HasSubstr("k_proj.qweight is there, but"));
  EXPECT_THAT(error_with_renamed("gptq_act_order", "q_proj.g_idx", "q_proj.other"),
              HasSubstr("q_proj.g_idx is not"));
  EXPECT_THAT(error_with_renamed("w4a16", "q_proj.weight_packed", "q_proj.other"),
              HasSubstr("q_proj.weight [64, 64] is missing"));
  EXPECT_THAT(error_with("gptq", {{"intermediate_size", 64}}),
              HasSubstr("gate_proj.qweight has shape [8, 96], expected [8, 64]"));
  EXPECT_THAT(with_field("gptq", "bits", 8),
              HasSubstr("q_proj.qweight has shape [8, 64], expected [16, 64]"));
  EXPECT_THAT(
      with_field("gptq", "group_size", 64),
      HasSubstr(
          "q_proj.scales has shape [2, 64], expected [1, 64], one scale for each 64 columns"));
  EXPECT_THAT(error_with_renamed("gptq", "I32", "F32"),
              HasSubstr("q_proj.qweight has dtype F32, expected I32"));
}

TEST(QuantizedLoad, AColumnsGroupMustBeThere) {
  for (const std::int32_t wrong : {-1, 2}) {
    const TempDirectory directory(kGolden / "gptq_act_order");
    change_tensor<std::int32_t>(directory, kFirst + "k_proj.g_idx", 1, {wrong});
    EXPECT_THAT(error_of(directory), AllOf(HasSubstr("k_proj.g_idx has the group"),
                                           HasSubstr("expected 0..1; group_size in")));
  }
}

TEST(QuantizedLoad, AScaleMustBeMoreThanNothing) {
  for (const float wrong : {0.0f, -1.0f, std::numeric_limits<float>::quiet_NaN(),
                            std::numeric_limits<float>::infinity()}) {
    const TempDirectory directory(kGolden / "fp8_channel");
    change_tensor<float>(directory, kFirst + "k_proj.weight_scale", 1, {wrong});
    EXPECT_THAT(error_of(directory), HasSubstr("k_proj.weight_scale has a scale of")) << wrong;
  }
}

/// Else a single weight makes all logits NaN.
TEST(QuantizedLoad, AScaleMustNotMakeWeightsInfinite) {
  const TempDirectory directory(kGolden / "fp8_channel");
  change_tensor<float>(directory, kFirst + "k_proj.weight_scale", 1, {2e38f});
  EXPECT_THAT(error_of(directory), AllOf(HasSubstr("k_proj.weight_scale has a scale of 1999"),
                                         HasSubstr("expected less than 2^119")));
}

TEST(QuantizedLoad, ScalesAreForWhatTheConfigSays) {
  EXPECT_THAT(with_field("w8a8", "strategy", "tensor"),
              HasSubstr("weight_scale has shape [64, 1], expected one scale, as"));
  EXPECT_THAT(
      with_field("w4a16", "strategy", "channel"),
      HasSubstr("weight_scale has shape [64, 2], expected [64, 1], one scale for each row"));
  EXPECT_THAT(with_field("gptq_symmetric", "group_size", 32),
              HasSubstr("scales has shape [1, 64], expected [2, 64], one scale for each 32"));
}

/// As the programs do that write them, whatever desc_act says; and groups that a file names are
/// right whatever their size is said to be.
TEST(QuantizedLoad, ColumnsHaveTheGroupsThatTheFileNames) {
  for (const auto& [model, field, value, most] :
       {std::tuple{"gptq_act_order", "desc_act", json(false), 1e-2},
        std::tuple{"gptq", "group_size", json(40), 1e-5}}) {
    const TempDirectory directory(kGolden / model);
    change_config(directory, changed_field(model, field, value));
    EXPECT_LT(error_of_logits(directory, model), most) << model;
    const auto files = SafetensorsDirectory::open(directory.path());
    EXPECT_EQ(TransformerWeights::bytes_to_copy(*files, *load_model_config(directory.path())),
              Transformer::load(directory.path())->private_weight_bytes());
  }
}

/// Products with groups that are in order are fast, and need no memory for them.
TEST(QuantizedLoad, GroupsInOrderAreNotKept) {
  const TempDirectory directory(kGolden / "gptq");
  change_config(directory, changed_field("gptq", "desc_act", true));
  EXPECT_LT(error_of_logits(directory, "gptq"), 1e-5);
  EXPECT_EQ(Transformer::load(directory.path())->private_weight_bytes(),
            Transformer::load(kGolden / "gptq")->private_weight_bytes());
}

/// Older versions of compressed-tensors leave out what says nothing.
TEST(QuantizedLoad, PackedColumnsWithoutGroupsAreInOrder) {
  const TempDirectory directory(kGolden / "w4a16");
  change_config(directory, changed_field("w4a16", "actorder", "group"));
  EXPECT_LT(error_of_logits(directory, "w4a16"), 1e-2);
}

TEST(QuantizedLoad, ZerosThatAreLeftOutAreInTheMiddle) {
  const TempDirectory directory(kGolden / "w4a16");
  change_config(directory, changed_field("w4a16", "symmetric", false));
  EXPECT_LT(error_of_logits(directory, "w4a16"), 1e-2);
}

TEST(QuantizedLoad, ZerosOfSymmetricCodesMustBeInTheMiddle) {
  EXPECT_THAT(with_field("w4a16_zeros", "symmetric", true),
              HasSubstr("weight_zero_point has a zero that is not in the middle"));
  EXPECT_THAT(with_field("w4a16_zeros", "symmetric", nullptr), HasSubstr("symmetric = false"));
  const TempDirectory directory(kGolden / "w4a16_zeros");
  change_config(directory, changed_field("w4a16_zeros", "symmetric", true));
  const auto files = SafetensorsDirectory::open(directory.path());
  for (const ModelTensor& listed : model_tensors(*load_model_config(directory.path())))
    if (const auto* const zeros = files->entry(listed.name + ".weight_zero_point"))
      change_tensor(directory, listed.name + ".weight_zero_point", 0,
                    std::vector<std::byte>(zeros->bytes.size(), std::byte{0x88}));
  EXPECT_EQ(error_of(directory), "no error");
}

TEST(QuantizedLoad, TheShapeInTheFileIsThatOfTheConfig) {
  const TempDirectory directory(kGolden / "w4a16");
  change_tensor<std::int64_t>(directory, kFirst + "q_proj.weight_shape", 1, {60});
  EXPECT_THAT(error_of(directory),
              HasSubstr("q_proj.weight_shape says [64, 60], expected [64, 64]"));
}

TEST(QuantizedLoad, CodesThatWouldNotBeUsedAreRefused) {
  for (const char* model : {"gptq", "awq", "w4a16"})
    EXPECT_THAT(error_with(model, {{"quantization_config", nullptr}}),
                AllOf(HasSubstr("q_proj."), HasSubstr("quantization_config in config.json")))
        << model;
  const TempDirectory directory(kGolden / "gptq_symmetric");
  rename_tensors(directory, kFirst + "q_proj.", "lm_head.");
  change_config(directory, {{"tie_word_embeddings", true}});
  EXPECT_THAT(error_of(directory), AllOf(HasSubstr("lm_head.qweight is there"),
                                         HasSubstr("tie_word_embeddings = true")));
}

}  // namespace
}  // namespace kvhive
