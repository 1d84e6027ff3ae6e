#include "models/model_tensors.hpp"

#include <gtest/gtest.h>

#include <map>

#include "models/safetensors.hpp"
#include "tests/models/golden.hpp"
#include "models/config/load_model_config.hpp"

namespace kvhive {
namespace {

/// Every name of the list, with its shape.
std::map<std::string, std::vector<std::int64_t>> listed(const ModelConfig& config) {
  std::map<std::string, std::vector<std::int64_t>> found;
  for (const ModelTensor& tensor : model_tensors(config)) {
    EXPECT_TRUE(found.emplace(tensor.weight_name(), tensor.weight_shape()).second || tensor.packed)
        << tensor.name;
    if (tensor.has_bias) found.emplace(tensor.bias_name(), tensor.bias_shape());
  }
  return found;
}

/// Every name in the files of a model directory, with its shape.
std::map<std::string, std::vector<std::int64_t>> in_files(const std::filesystem::path& directory) {
  std::map<std::string, std::vector<std::int64_t>> found;
  for (const auto& entry : std::filesystem::directory_iterator(directory)) {
    if (entry.path().extension() != ".safetensors") continue;
    const auto file = MappedFile::open(entry.path()).value();
    const auto tensors = parse_safetensors(file.bytes(), "f").value();
    for (const auto& [name, tensor] : tensors) found.emplace(name, tensor.shape);
  }
  return found;
}

TEST(ModelTensors, ListsExactlyWhatTheFilesHave) {
  for (const std::string model :
       {"llama2", "llama3", "mistral", "qwen2", "qwen3", "gemma2", "gemma3", "qwen3_moe",
        "qwen3_moe_raw", "yarn", "deepseek_v2", "deepseek_v2_lite", "llama4", "llama4_top2"}) {
    const auto config = load_model_config(kGolden / model).value();
    EXPECT_EQ(listed(config), in_files(kGolden / model)) << model;
    if (config.attention_chunk == 0) {
      EXPECT_EQ(count_with_biases(model_tensors(config)), listed(config).size()) << model;
    }
  }
}

TEST(ModelTensors, PackedExpertsAreMatricesOfTwoTensors) {
  const auto config = load_model_config(kGolden / "llama4").value();
  std::vector<ModelTensor> packed;
  for (const ModelTensor& tensor : model_tensors(config))
    if (tensor.packed) packed.push_back(tensor);
  ASSERT_EQ(packed.size(), 4u * 3) << "one sparse layer of four experts";
  for (const ModelTensor& tensor : packed) {
    const bool is_down = tensor.weight == LayerWeight::expert_down;
    EXPECT_EQ(tensor.weight_name(), std::string("model.layers.1.feed_forward.experts.") +
                                        (is_down ? "down_proj" : "gate_up_proj"));
    EXPECT_EQ(tensor.packed->first, tensor.weight == LayerWeight::expert_up ? 48 : 0);
    EXPECT_EQ(tensor.rows, is_down ? 32 : 48);
    EXPECT_EQ(tensor.columns, is_down ? 48 : 32);
  }
}

TEST(ModelTensors, BiasesNormsAndTheTiedMatrixFollowTheConfig) {
  auto config = load_model_config(kGolden / "llama2").value();
  config.layers = 1;
  config.tie_word_embeddings = false;
  EXPECT_EQ(listed(config).size(), 2u + 9 + 1);
  config.tie_word_embeddings = true;
  EXPECT_FALSE(listed(config).contains("lm_head.weight"));
  config.qkv_bias = config.output_bias = config.mlp_bias = true;
  EXPECT_EQ(listed(config).size(), 2u + 9 + 7);
  EXPECT_EQ(listed(config)["model.layers.0.mlp.down_proj.bias"],
            std::vector<std::int64_t>{config.hidden_size});
  EXPECT_FALSE(listed(config).contains("model.layers.0.self_attn.q_norm.weight"));
}

TEST(ModelTensors, ExpertsAreListedInSparseLayersOnly) {
  const auto config = load_model_config(kGolden / "qwen3_moe").value();
  const auto names = listed(config);
  EXPECT_TRUE(names.contains("model.layers.0.mlp.experts.5.up_proj.weight"));
  EXPECT_TRUE(names.contains("model.layers.0.mlp.gate.weight"));
  EXPECT_FALSE(names.contains("model.layers.0.mlp.up_proj.weight"));
  EXPECT_FALSE(names.contains("model.layers.1.mlp.gate.weight"));
  EXPECT_TRUE(names.contains("model.layers.1.mlp.up_proj.weight"));
}

TEST(ModelTensors, ATensorFusedWithThePreviousOneHasItsShape) {
  for (const std::string model : {"qwen3", "qwen3_moe"}) {
    const auto tensors = model_tensors(load_model_config(kGolden / model).value());
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      if (tensors[i].fusion != Fusion::with_previous) continue;
      ASSERT_GT(i, 0u);
      EXPECT_EQ(tensors[i].weight_shape(), tensors[i - 1].weight_shape()) << tensors[i].name;
      EXPECT_EQ(tensors[i].has_bias, tensors[i - 1].has_bias) << tensors[i].name;
      EXPECT_EQ(tensors[i].product, tensors[i - 1].product) << tensors[i].name;
      EXPECT_EQ(tensors[i].expert, tensors[i - 1].expert) << tensors[i].name;
    }
  }
}

}  // namespace
}  // namespace kvhive
