#include "models/model_tensors.hpp"

namespace kvhive {
namespace {

std::int32_t width_of(const ModelConfig& config, Width width) {
  switch (width) {
    case Width::none: return 0;
    case Width::hidden: return config.hidden_size;
    case Width::inner: return config.intermediate_size;
    case Width::queries: return config.heads * config.head_size;
    case Width::values: return config.heads * config.value_size();
    case Width::keys: return config.kv_heads * config.head_size;
    case Width::head: return config.head_size;
    case Width::experts: return config.experts;
    case Width::expert_inner: return config.expert_inner;
    case Width::shared_inner: return config.shared_experts * config.expert_inner;
    case Width::query_rank: return config.latent.query_rank;
    case Width::latent: return config.latent.rank;
    case Width::latent_row: return config.latent.rank + config.latent.rope;
    case Width::latent_heads: return config.heads * (config.latent.nope + config.latent.value);
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

constexpr std::int32_t kNoExpert = -1;

/// How the model's files call a weight, and how its experts lie there.
WeightName name_of(const ModelConfig& config, const LayerWeightRow& row) {
  for (const WeightName& other : config.architecture->names)
    if (other.weight == row.weight) return other;
  return {row.weight, row.name};
}

/// "mlp.experts.*.up_proj" of expert 3 is "mlp.experts.3.up_proj".
std::string numbered(std::string_view name, std::int32_t expert) {
  std::string text(name);
  if (const auto star = text.find('*'); star != std::string::npos)
    text.replace(star, 1, std::to_string(expert));
  return text;
}

std::optional<PackedMatrix> packed(const ModelConfig& config, Packing packing, std::int32_t rows) {
  switch (packing) {
    case Packing::none: return std::nullopt;
    case Packing::alone: return PackedMatrix{config.experts, rows, 0};
    case Packing::first_of_two: return PackedMatrix{config.experts, 2 * rows, 0};
    case Packing::second_of_two: return PackedMatrix{config.experts, 2 * rows, rows};
  }
  return std::nullopt;
}

ModelTensor tensor_of(const ModelConfig& config, const LayerWeightRow& row, std::int32_t layer,
                      std::int32_t expert) {
  const WeightName name = name_of(config, row);
  const std::int32_t rows = width_of(config, row.rows);
  return {.use = ModelTensor::Use::layer,
          .layer = layer,
          .weight = row.weight,
          .expert = expert,
          .name = "model.layers." + std::to_string(layer) + "." + numbered(name.name, expert),
          .packed = packed(config, name.packing, rows),
          .rows = rows,
          .columns = width_of(config, row.columns),
          .has_bias = has_bias(config, row.bias),
          .product = row.product,
          .fusion = row.fusion};
}

bool has(const ModelConfig& config, std::int32_t layer, const LayerWeightRow& row) {
  if (!config.has(row.weight)) return false;
  switch (row.occurrence) {
    case Occurrence::each_layer: return true;
    case Occurrence::dense_layers: return !config.is_sparse(layer);
    case Occurrence::sparse_layers: return config.is_sparse(layer);
    case Occurrence::each_expert: return false;  // listed expert by expert
  }
  return false;
}

/// Each expert's weights together, so that what is used together lies together.
void add_experts(std::vector<ModelTensor>& tensors, const ModelConfig& config, std::int32_t layer) {
  for (std::int32_t expert = 0; expert < config.experts; ++expert)
    for (const LayerWeightRow& row : kLayerWeights)
      if (row.occurrence == Occurrence::each_expert)
        tensors.push_back(tensor_of(config, row, layer, expert));
}

void add_layer(std::vector<ModelTensor>& tensors, const ModelConfig& config, std::int32_t layer) {
  for (const LayerWeightRow& row : kLayerWeights)
    if (has(config, layer, row)) tensors.push_back(tensor_of(config, row, layer, kNoExpert));
  if (config.is_sparse(layer)) add_experts(tensors, config, layer);
}

}  // namespace

std::vector<std::int64_t> ModelTensor::weight_shape() const {
  if (is_vector()) return {rows};
  if (packed) return {packed->experts, columns, packed->wide};
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
