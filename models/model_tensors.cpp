#include "models/model_tensors.hpp"

namespace kvhive {
namespace {

std::int32_t width_of(const ModelConfig& config, Width width) {
  switch (width) {
    case Width::none: return 0;
    case Width::hidden: return config.hidden_size;
    case Width::inner: return config.intermediate_size;
    case Width::queries: return config.heads * config.head_size;
    case Width::keys: return config.kv_heads * config.head_size;
    case Width::head: return config.head_size;
  }
  return 0;
}

bool has_bias(const ModelConfig& config, BiasRule rule) {
  switch (rule) {
    case BiasRule::none: return false;
    case BiasRule::qkv: return config.qkv_bias;
    case BiasRule::output: return config.output_bias;
    case BiasRule::mlp: return config.mlp_bias;
  }
  return false;
}

void add_layer(std::vector<ModelTensor>& tensors, const ModelConfig& config, std::int32_t layer) {
  for (const LayerWeightRow& row : kLayerWeights) {
    if (!config.has(row.weight)) continue;
    tensors.push_back(
        {.use = ModelTensor::Use::layer,
         .layer = layer,
         .weight = row.weight,
         .name = "model.layers." + std::to_string(layer) + "." + std::string(row.name),
         .rows = width_of(config, row.rows),
         .columns = width_of(config, row.columns),
         .has_bias = has_bias(config, row.bias),
         .product = row.product,
         .fusion = row.fusion});
  }
}

}  // namespace

std::vector<std::int64_t> ModelTensor::weight_shape() const {
  if (is_vector()) return {rows};
  return {rows, columns};
}

std::vector<ModelTensor> model_tensors(const ModelConfig& config) {
  using Use = ModelTensor::Use;
  std::vector<ModelTensor> tensors;
  tensors.push_back({.use = Use::embedding,
                     .name = "model.embed_tokens",
                     .rows = config.vocab_size,
                     .columns = config.hidden_size});
  for (std::int32_t layer = 0; layer < config.layers; ++layer) add_layer(tensors, config, layer);
  tensors.push_back({.use = Use::final_norm, .name = "model.norm", .rows = config.hidden_size});
  if (!config.tie_word_embeddings)
    tensors.push_back({.use = Use::lm_head,
                       .name = "lm_head",
                       .rows = config.vocab_size,
                       .columns = config.hidden_size,
                       .product = ProductDtype::f32});
  return tensors;
}

std::size_t count_with_biases(const std::vector<ModelTensor>& tensors) {
  std::size_t count = 0;
  for (const ModelTensor& tensor : tensors) count += tensor.has_bias ? 2 : 1;
  return count;
}

}  // namespace kvhive
