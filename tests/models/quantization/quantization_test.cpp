// What quantization_config may say, and what is refused by name.

#include "models/quantization/quantization.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace kvhive {
namespace {

using nlohmann::json;
using testing::HasSubstr;

Expected<Quantization> read(const json& config) {
  const json object{{"quantization_config", config}};
  return read_quantization(JsonFields(object, "config.json"));
}

/// As llm-compressor writes it.
json compressed(const json& weights = json::object(), const json& others = json::object()) {
  json of_weights{{"num_bits", 8},      {"type", "float"},  {"strategy", "channel"},
                  {"symmetric", true},  {"dynamic", false}, {"group_size", nullptr},
                  {"actorder", nullptr}};
  of_weights.update(weights);
  json config{{"quant_method", "compressed-tensors"},
              {"format", "float-quantized"},
              {"kv_cache_scheme", {{"num_bits", 8}, {"type", "float"}}},
              {"sparsity_config", json::object()},
              {"ignore", {"lm_head"}},
              {"config_groups", {{"group_0", {{"weights", of_weights}, {"targets", {"Linear"}}}}}}};
  config.update(others);
  return config;
}

TEST(Quantization, NoneIsNone) {
  const json object = json::object();
  EXPECT_EQ(read_quantization(JsonFields(object, "config.json"))->kind, Quantization::Kind::none);
  EXPECT_EQ(read(nullptr)->kind, Quantization::Kind::none);
}

TEST(Quantization, ReadsFp8WithAndWithoutBlocks) {
  const auto plain = read({{"quant_method", "fp8"}, {"activation_scheme", "static"}});
  ASSERT_TRUE(plain) << plain.error().text;
  EXPECT_EQ(plain->kind, Quantization::Kind::fp8);
  EXPECT_EQ(plain->block_rows, 0);
  const auto blocks = read({{"quant_method", "fp8"},
                            {"fmt", "e4m3"},
                            {"activation_scheme", "dynamic"},
                            {"modules_to_not_convert", {"lm_head"}},
                            {"weight_block_size", {128, 64}}});
  ASSERT_TRUE(blocks) << blocks.error().text;
  EXPECT_EQ(blocks->block_rows, 128);
  EXPECT_EQ(blocks->block_columns, 64);
}

TEST(Quantization, ReadsCompressedTensors) {
  const auto rows = read(compressed());
  ASSERT_TRUE(rows) << rows.error().text;
  EXPECT_EQ(rows->kind, Quantization::Kind::fp8);
  EXPECT_EQ(rows->block_rows, 0);
  const auto blocks = read(compressed({{"strategy", "block"}, {"block_structure", {32, 16}}}));
  ASSERT_TRUE(blocks) << blocks.error().text;
  EXPECT_EQ(blocks->block_rows, 32);
  EXPECT_EQ(blocks->block_columns, 16);
}

json with(json config, const json& changes) {
  config.update(changes);
  return config;
}

json gptq(const json& changes = json::object()) {
  return with({{"quant_method", "gptq"}, {"bits", 4}, {"group_size", 128}, {"desc_act", false}},
              changes);
}

json awq(const json& changes = json::object()) {
  return with({{"quant_method", "awq"}, {"bits", 4}, {"group_size", 64}, {"version", "gemm"}},
              changes);
}

/// Integers, as llm-compressor writes them.
json packed(const json& weights = json::object(), const char* format = "pack-quantized") {
  return compressed(
      with({{"num_bits", 4}, {"type", "int"}, {"strategy", "group"}, {"group_size", 32}}, weights),
      {{"format", format}});
}

TEST(Quantization, ReadsGptq) {
  const auto plain = read(gptq());
  ASSERT_TRUE(plain) << plain.error().text;
  EXPECT_EQ(*plain, (Quantization{.kind = Quantization::Kind::gptq,
                                  .bits = 4,
                                  .group = 128,
                                  .scale_of = Quantization::ScaleOf::row,
                                  .has_zeros = true,
                                  .lacks_one = true}));
  const auto other =
      read(gptq({{"bits", 8},
                 {"group_size", -1},
                 {"desc_act", true},
                 {"checkpoint_format", "gptq_v2"},
                 {"dynamic", {{"-:.*attn.*", {{"bits", 8}}}, {"lm_head", json::object()}}},
                 {"pack_dtype", "int32"}}));
  ASSERT_TRUE(other) << other.error().text;
  EXPECT_EQ(*other, (Quantization{.kind = Quantization::Kind::gptq,
                                  .bits = 8,
                                  .scale_of = Quantization::ScaleOf::row,
                                  .has_zeros = true,
                                  .is_reordered = true}));
  EXPECT_TRUE(read(gptq({{"dynamic", false}})));
}

TEST(Quantization, ReadsAwq) {
  const auto how = read(awq({{"zero_point", true}, {"modules_to_not_convert", nullptr}}));
  ASSERT_TRUE(how) << how.error().text;
  EXPECT_EQ(*how, (Quantization{.kind = Quantization::Kind::awq,
                                .bits = 4,
                                .group = 64,
                                .scale_of = Quantization::ScaleOf::row,
                                .has_zeros = true}));
}

TEST(Quantization, ReadsIntegersOfCompressedTensors) {
  const auto grouped = read(packed());
  ASSERT_TRUE(grouped) << grouped.error().text;
  EXPECT_EQ(*grouped, (Quantization{.kind = Quantization::Kind::packed,
                                    .bits = 4,
                                    .group = 32,
                                    .scale_of = Quantization::ScaleOf::row}));
  const auto ordered = read(packed({{"symmetric", false}, {"actorder", "group"}}));
  ASSERT_TRUE(ordered) << ordered.error().text;
  EXPECT_TRUE(ordered->has_zeros);
  EXPECT_TRUE(read(packed({{"actorder", "weight"}})));
  const auto bytes = read(
      packed({{"num_bits", 8}, {"strategy", "channel"}, {"group_size", nullptr}}, "int-quantized"));
  ASSERT_TRUE(bytes) << bytes.error().text;
  const Quantization of_rows{.kind = Quantization::Kind::int8,
                             .scale_of = Quantization::ScaleOf::row};
  EXPECT_EQ(*bytes, of_rows);
  // Four bits that are not packed have a byte each.
  EXPECT_EQ(*read(packed({{"strategy", "channel"}}, "int-quantized")), of_rows);
}

/// What compressed-tensors takes a field for that is left out.
TEST(Quantization, ReadsWhatCompressedTensorsLeavesOut) {
  const auto of = [](json weights, const char* format) {
    return read({{"quant_method", "compressed-tensors"},
                 {"format", format},
                 {"config_groups",
                  {{"attention", {{"weights", nullptr}, {"targets", {"Attention"}}}},
                   {"group_0", {{"weights", std::move(weights)}}}}}});
  };
  using ScaleOf = Quantization::ScaleOf;
  const auto plain = of(json::object(), "pack-quantized");
  ASSERT_TRUE(plain) << plain.error().text;
  EXPECT_EQ(*plain,
            (Quantization{.kind = Quantization::Kind::packed, .scale_of = ScaleOf::matrix}));
  EXPECT_EQ(of({{"group_size", 32}}, "pack-quantized")->group, 32);
  EXPECT_EQ(of({{"group_size", -1}}, "pack-quantized")->scale_of, ScaleOf::row);
}

TEST(Quantization, ReadsNaiveAsItsTypeSays) {
  const auto floats = read(compressed({{"actorder", "weight"}}, {{"format", "naive-quantized"}}));
  ASSERT_TRUE(floats) << floats.error().text;
  EXPECT_EQ(floats->kind, Quantization::Kind::fp8);
  const auto integers = read(compressed({{"type", "int"}}, {{"format", "naive-quantized"}}));
  ASSERT_TRUE(integers) << integers.error().text;
  EXPECT_EQ(integers->kind, Quantization::Kind::int8);
}

TEST(Quantization, DenseIsNotSparse) {
  const json dense{{"format", "dense"}, {"sparsity_structure", "unstructured"}};
  EXPECT_TRUE(read(compressed(json::object(), {{"sparsity_config", dense}})));
}

struct Refusal {
  json config;
  const char* named;
};

class RefusedQuantization : public testing::TestWithParam<Refusal> {};

TEST_P(RefusedQuantization, IsNamed) {
  const auto how = read(GetParam().config);
  ASSERT_FALSE(how);
  EXPECT_THAT(how.error().text, HasSubstr("config.json"));
  EXPECT_THAT(how.error().text, HasSubstr(GetParam().named));
}

INSTANTIATE_TEST_SUITE_P(
    Fields, RefusedQuantization,
    testing::Values(
        Refusal{{{"quant_method", "hqq"}, {"bits", 4}}, "hqq"},
        Refusal{{{"quant_method", "bitsandbytes"}}, "bitsandbytes"},
        Refusal{{{"quant_method", "modelopt"}}, "quant_method = \"modelopt\", expected fp8, gptq"},
        Refusal{compressed(json::object(), {{"config_groups",
                                             {{"group_0",
                                               {{"weights", {{"type", "float"}}},
                                                {"format", "nvfp4-pack-quantized"}}}}}}),
                "group_0: format = \"nvfp4-pack-quantized\""},
        Refusal{{{"bits", 4}}, "quant_method is missing"}, Refusal{"fp8", "quantization_config"},
        Refusal{{{"quant_method", "fp8"}, {"fmt", "e5m2"}}, "fmt = \"e5m2\""},
        Refusal{{{"quant_method", "fp8"}, {"activation_scheme", "none"}}, "activation_scheme"},
        Refusal{{{"quant_method", "fp8"}, {"weight_block_size", {128}}}, "weight_block_size"},
        Refusal{{{"quant_method", "fp8"}, {"weight_block_size", {0, 1}}}, "weight_block_size"},
        Refusal{{{"quant_method", "fp8"}, {"weight_block_size", {1, "x"}}}, "weight_block_size"},
        Refusal{compressed(json::object(), {{"format", "marlin-24"}}), "format = \"marlin-24\""},
        Refusal{compressed(json::object(), {{"format", "pack-quantized"}}), "type = \"float\""},
        Refusal{packed({{"num_bits", 3}}), "num_bits = 3, expected 4 or 8"},
        Refusal{packed({{"num_bits", 3}}, "int-quantized"), "num_bits = 3, expected 4 or 8"},
        Refusal{packed({{"actorder", "group"}}, "int-quantized"), "actorder = \"group\""},
        Refusal{packed({{"strategy", "block"}}), "strategy = \"block\""},
        Refusal{packed({{"group_size", 0}}), "group_size = 0"},
        Refusal{packed({{"group_size", nullptr}}), "group_size is missing"},
        Refusal{packed({{"actorder", "magic"}}), "actorder = \"magic\""},
        Refusal{packed({{"dynamic", true}}), "dynamic = true"},
        Refusal{gptq({{"bits", 3}}), "bits = 3, expected 4 or 8"},
        Refusal{gptq({{"group_size", -2}}), "group_size = -2"},
        Refusal{gptq({{"checkpoint_format", "marlin"}}), "checkpoint_format = \"marlin\""},
        Refusal{gptq({{"dynamic", {{"+:.*down.*", {{"bits", 8}}}}}}),
                "dynamic: +:.*down.* = {\"bits\":8}"},
        Refusal{gptq({{"dynamic", {".*"}}}), "dynamic"},
        Refusal{gptq({{"pack_dtype", "int64"}}), "pack_dtype = \"int64\""},
        Refusal{awq({{"bits", 8}}), "bits = 8, expected 4"},
        Refusal{awq({{"version", "gemv"}}), "version = \"gemv\""},
        Refusal{compressed(json::object(), {{"transform_config", {{"R1", 1}}}}),
                "transform_config"},
        Refusal{compressed(json::object(), {{"sparsity_config", {{"format", "sparse-24"}}}}),
                "sparsity_config"},
        Refusal{compressed(json::object(), {{"config_groups", nullptr}}),
                "config_groups is missing"},
        Refusal{compressed({{"num_bits", 4}}), "group_0: weights: num_bits = 4"},
        Refusal{compressed({{"type", "int"}}), "type = \"int\""},
        Refusal{compressed({{"symmetric", false}}), "symmetric = false"},
        Refusal{compressed({{"strategy", "group"}}), "strategy = \"group\""},
        Refusal{compressed({{"strategy", "block"}}), "block_structure is missing"}));

}  // namespace
}  // namespace kvhive
