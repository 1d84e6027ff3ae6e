#include "models/transformer_weights.hpp"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "models/quantization/coded_rows.hpp"
#include "models/quantized_matrix.hpp"

namespace kvhive {
namespace {

/// What published checkpoints call the scales for a cache of fp8, behind
/// "model.layers.N.self_attn.".
struct KvScaleNames {
  const char* k;
  const char* v;
};
constexpr KvScaleNames kKvScaleNames[] = {
    {"k_scale", "v_scale"},
    {"attn.k_scale", "attn.v_scale"},
    {"k_proj.k_scale", "v_proj.v_scale"},
    {"k_proj.output_scale", "v_proj.output_scale"},
    {"kv_scale", "kv_scale"},
};

Expected<float> read_one_scale(const SafetensorsDirectory& files, const std::string& name) {
  if (files.entry(name) == nullptr)
    return failure(Errc::not_found, files.where(name) +
                                        " is missing, but the other one of k_scale and v_scale is "
                                        "there; fetch the file again");
  auto values = read_scale_values(files, name);
  if (!values) return forward_error(values);
  if (values->size() != 1)
    return failure(Errc::unsupported, files.where(name) + " has shape " +
                                          shape_text(files.entry(name)->shape) +
                                          ", expected one scale for a layer");
  return values->front();
}

/// The bytes of one expert's matrix, row by row, from the tensor of all experts.
std::vector<std::byte> unpacked(const ModelTensor& listed, const TensorView& all) {
  const std::size_t rows = listed.rows, columns = listed.columns, size = bytes_of(all.dtype);
  const std::size_t pitch = std::size_t(listed.packed->wide) * size;
  const std::byte* const from =
      all.bytes.data() +
      (listed.expert * columns * listed.packed->wide + listed.packed->first) * size;
  std::vector<std::byte> turned(rows * columns * size);
  // A few rows at a time, so that their lines stay in the cache until they are full.
  constexpr std::size_t kAtOnce = 16;
  for (std::size_t first = 0; first < rows; first += kAtOnce)
    for (std::size_t column = 0; column < columns; ++column)
      for (std::size_t row = first; row < std::min(first + kAtOnce, rows); ++row)
        std::memcpy(&turned[(row * columns + column) * size], from + column * pitch + row * size,
                    size);
  return turned;
}

/// Looks up tensors one after the other. After the first error all further lookups return empty
/// results; these are never used, since load() returns the error.
class TensorReader {
 public:
  TensorReader(const SafetensorsDirectory& files, const ModelConfig& config, std::size_t total,
               const LoadProgress& progress)
      : files_(files), config_(config), total_(total), progress_(progress) {}

  TensorView tensor(const std::string& name, std::vector<std::int64_t> shape) {
    if (failed_) return {};
    auto found = files_.find(name, shape);
    if (!found) {
      failed_ = std::move(found.error());
      return {};
    }
    count();
    return *found;
  }

  std::vector<float> vector(const std::string& name, std::int64_t size) {
    const auto found = tensor(name, {size});
    std::vector<float> values(failed_ ? 0 : size);
    read_floats(found, 0, values);
    return values;
  }

  std::vector<float> vector(const ModelTensor& listed) {
    return vector(listed.weight_name(), listed.rows);
  }

  std::optional<Matmul> matmul(const ModelTensor& listed) {
    if (listed.packed) return unpacked_matmul(listed);
    if (is_quantized(listed)) return coded_matmul(listed);
    const auto weights = tensor(listed.weight_name(), listed.weight_shape());
    auto bias = bias_of(listed);
    if (failed_) return std::nullopt;
    return Matmul({weights.dtype, listed.rows, listed.columns, weights.bytes}, std::move(bias));
  }

  std::optional<LatentHeads> latent_heads(const ModelTensor& listed) {
    if (is_quantized(listed)) {
      const auto weights = coded(listed);
      if (failed_) return std::nullopt;
      const auto values = values_of(weights, quantized_to());
      return LatentHeads({quantized_to(), listed.rows, listed.columns, values},
                         BytesLive::for_the_call, config_.heads, config_.latent);
    }
    const auto weights = tensor(listed.weight_name(), listed.weight_shape());
    if (failed_) return std::nullopt;
    return LatentHeads({weights.dtype, listed.rows, listed.columns, weights.bytes},
                       BytesLive::as_the_model, config_.heads, config_.latent);
  }

  void read_kv_scales(std::int32_t layer, std::optional<KvScaleValues>& into) {
    if (failed_) return;
    auto found = kvhive::read_kv_scales(files_, layer);
    if (found)
      into = *found;
    else
      failed_ = std::move(found.error());
  }

  std::optional<Error>& failed() { return failed_; }

 private:
  void count() {
    if (progress_) progress_(++done_, total_);
  }

  std::vector<float> bias_of(const ModelTensor& listed) {
    return listed.has_bias ? vector(listed.bias_name(), listed.rows) : std::vector<float>();
  }

  bool is_quantized(const ModelTensor& listed) const {
    return kvhive::is_quantized(files_, listed, config_.quantization);
  }
  Dtype quantized_to() const { return dtype_of_quantized(config_.dtype); }

  CodedMatrix coded(const ModelTensor& listed) {
    if (failed_) return {};
    auto weights = read_coded(files_, listed, config_.quantization);
    if (!weights) {
      failed_ = std::move(weights.error());
      return {};
    }
    count();
    return std::move(*weights);
  }

  /// Products read rows, so a packed matrix is copied and turned.
  std::optional<Matmul> unpacked_matmul(const ModelTensor& listed) {
    const auto all = tensor(listed.weight_name(), listed.weight_shape());
    if (failed_) return std::nullopt;
    return Matmul({all.dtype, listed.rows, listed.columns, {}}, unpacked(listed, all), {});
  }

  std::optional<Matmul> coded_matmul(const ModelTensor& listed) {
    auto weights = coded(listed);
    auto bias = bias_of(listed);
    if (failed_) return std::nullopt;
    return Matmul(std::move(weights), quantized_to(), std::move(bias));
  }

  const SafetensorsDirectory& files_;
  const ModelConfig& config_;
  std::size_t total_;
  const LoadProgress& progress_;
  std::size_t done_ = 0;
  std::optional<Error> failed_;
};

/// A norm's weights, as rms_norm() takes them: Gemma's files have them less 1.
std::vector<float> read_norm(TensorReader& reader, const ModelTensor& listed,
                             const ModelConfig& config) {
  std::vector<float> weights = reader.vector(listed);
  if (config.architecture->family == Family::gemma)
    for (float& weight : weights) weight += 1;
  return weights;
}

void read_expert_weight(TensorReader& reader, const ModelTensor& listed, ExpertWeights& expert) {
  auto& matrix = listed.weight == LayerWeight::expert_gate ? expert.gate
                 : listed.weight == LayerWeight::expert_up ? expert.up
                                                           : expert.down;
  matrix = reader.matmul(listed);
}

void read_layer_weight(TensorReader& reader, const ModelTensor& listed, const ModelConfig& config,
                       std::vector<LayerWeights>& layers) {
  LayerWeights& layer = layers[listed.layer];
  const auto weight = static_cast<std::size_t>(listed.weight);
  if (listed.expert >= 0) {
    layer.experts.resize(config.experts);
    read_expert_weight(reader, listed, layer.experts[listed.expert]);
  } else if (listed.weight == LayerWeight::kv_b) {
    layer.heads = reader.latent_heads(listed);
  } else if (listed.is_vector()) {
    layer.norms[weight] = read_norm(reader, listed, config);
  } else {
    layer.products[weight] = reader.matmul(listed);
  }
}

}  // namespace

Expected<std::optional<KvScaleValues>> read_kv_scales(const SafetensorsDirectory& files,
                                                      std::int32_t layer) {
  const std::string prefix = "model.layers." + std::to_string(layer) + ".self_attn.";
  for (const KvScaleNames& names : kKvScaleNames) {
    if (files.entry(prefix + names.k) == nullptr && files.entry(prefix + names.v) == nullptr)
      continue;
    auto k = read_one_scale(files, prefix + names.k);
    if (!k) return forward_error(k);
    auto v = read_one_scale(files, prefix + names.v);
    if (!v) return forward_error(v);
    return KvScaleValues{*k, *v};
  }
  return std::nullopt;
}

std::size_t TransformerWeights::private_bytes() const {
  std::size_t bytes = 0;
  const auto add = [&](const std::optional<Matmul>& matrix) {
    if (matrix) bytes += matrix->owned_bytes();
  };
  add(lm_head);
  for (const LayerWeights& layer : layers) {
    for (const auto& matrix : layer.products) add(matrix);
    if (layer.heads) bytes += layer.heads->owned_bytes();
    for (const ExpertWeights& expert : layer.experts)
      for (const auto* const matrix : {&expert.gate, &expert.up, &expert.down}) add(*matrix);
  }
  return bytes;
}

std::size_t TransformerWeights::bytes_to_copy(const SafetensorsDirectory& files,
                                              const ModelConfig& config) {
  const auto bytes_of_one = [&](const ModelTensor& listed) -> std::size_t {
    const std::size_t elements = std::size_t(listed.rows) * std::size_t(listed.columns);
    const bool is_kv_b = listed.weight == LayerWeight::kv_b;
    if (is_quantized(files, listed, config.quantization))
      return is_kv_b ? elements * bytes_of(dtype_of_quantized(config.dtype))
                     : coded_bytes_to_copy(files, listed, config.quantization);
    if (!listed.packed && !is_kv_b) return 0;
    const auto found = files.find(listed.weight_name(), listed.weight_shape());
    const std::size_t size = bytes_of(found ? found->dtype : config.dtype);
    const LatentShape& latent = config.latent;
    return size * (is_kv_b ? std::size_t(config.heads) * latent.nope * latent.rank : elements);
  };
  std::size_t bytes = 0;
  for (const ModelTensor& listed : model_tensors(config))
    if (listed.use == ModelTensor::Use::layer || listed.use == ModelTensor::Use::lm_head)
      bytes += bytes_of_one(listed);
  return bytes;
}

Expected<TransformerWeights> TransformerWeights::load(const std::filesystem::path& directory,
                                                      const ModelConfig& config,
                                                      const LoadProgress& progress) {
  auto files = SafetensorsDirectory::open(directory);
  if (!files) return forward_error(files);
  const auto tensors = model_tensors(config);
  if (auto used = check_codes_are_used(*files, config, tensors); !used) return forward_error(used);
  TransformerWeights weights;
  weights.files = std::move(*files);
  weights.layers.resize(config.layers);
  TensorReader reader(weights.files, config, count_with_biases(tensors), progress);
  for (const ModelTensor& listed : tensors) {
    switch (listed.use) {
      case ModelTensor::Use::embedding:
        weights.embedding = reader.tensor(listed.weight_name(), listed.weight_shape());
        break;
      case ModelTensor::Use::layer:
        read_layer_weight(reader, listed, config, weights.layers);
        break;
      case ModelTensor::Use::final_norm:
        weights.final_norm = read_norm(reader, listed, config);
        break;
      case ModelTensor::Use::lm_head: weights.lm_head = reader.matmul(listed); break;
    }
    if (reader.failed()) break;
  }
  for (std::int32_t layer = 0; layer < config.layers; ++layer)
    reader.read_kv_scales(layer, weights.layers[layer].kv_scales);
  if (config.tie_word_embeddings && !reader.failed())
    weights.lm_head = Matmul(
        {weights.embedding.dtype, config.vocab_size, config.hidden_size, weights.embedding.bytes},
        {});
  if (reader.failed()) return tl::unexpected<Error>(std::move(*reader.failed()));
  return weights;
}

}  // namespace kvhive
