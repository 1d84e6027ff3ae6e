#include "models/transformer_weights.hpp"

#include <cstring>
#include <string>
#include <utility>

#include "base/check.hpp"

namespace kvhive {
namespace {

template <class Bits, class Convert>
void convert_floats(const std::byte* from, std::span<float> out, Convert convert) {
  for (std::size_t i = 0; i < out.size(); ++i) {
    Bits bits;
    std::memcpy(&bits, from + i * sizeof(Bits), sizeof(Bits));
    out[i] = convert(bits);
  }
}

/// Looks up tensors one after the other. After the first error all further lookups return empty
/// results; these are never used, since load() returns the error.
class TensorReader {
 public:
  TensorReader(const SafetensorsDirectory& files, std::size_t total, const LoadProgress& progress)
      : files_(files), total_(total), progress_(progress) {}

  TensorView tensor(const std::string& name, std::vector<std::int64_t> shape) {
    if (failed_) return {};
    auto found = files_.find(name, shape);
    if (!found) {
      failed_ = std::move(found.error());
      return {};
    }
    if (progress_) progress_(++done_, total_);
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
    const auto weights = tensor(listed.weight_name(), listed.weight_shape());
    auto bias = listed.has_bias ? vector(listed.bias_name(), listed.rows) : std::vector<float>();
    if (failed_) return std::nullopt;
    return Matmul({weights.dtype, listed.rows, listed.columns, weights.bytes}, std::move(bias));
  }

  std::optional<Error>& failed() { return failed_; }

 private:
  const SafetensorsDirectory& files_;
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
  } else if (listed.is_vector()) {
    layer.norms[weight] = read_norm(reader, listed, config);
  } else {
    layer.products[weight] = reader.matmul(listed);
  }
}

}  // namespace

void read_floats(const TensorView& tensor, std::size_t first, std::span<float> out) {
  KV_CHECK((first + out.size()) * bytes_of(tensor.dtype) <= tensor.bytes.size(), first, out.size());
  const std::byte* from = tensor.bytes.data() + first * bytes_of(tensor.dtype);
  switch (tensor.dtype) {
    case Dtype::f32: return convert_floats<float>(from, out, [](float value) { return value; });
    case Dtype::bf16: return convert_floats<std::uint16_t>(from, out, float_of_bf16);
    case Dtype::f16: return convert_floats<std::uint16_t>(from, out, float_of_f16);
    default: KV_CHECK(false, int(tensor.dtype));  // SafetensorsDirectory returns no other dtype
  }
}

Expected<TransformerWeights> TransformerWeights::load(const std::filesystem::path& directory,
                                                      const ModelConfig& config,
                                                      const LoadProgress& progress) {
  auto files = SafetensorsDirectory::open(directory);
  if (!files) return forward_error(files);
  TransformerWeights weights;
  weights.files = std::move(*files);
  weights.layers.resize(config.layers);
  const auto tensors = model_tensors(config);
  TensorReader reader(weights.files, count_with_biases(tensors), progress);
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
  if (config.tie_word_embeddings && !reader.failed())
    weights.lm_head = Matmul(
        {weights.embedding.dtype, config.vocab_size, config.hidden_size, weights.embedding.bytes},
        {});
  if (reader.failed()) return tl::unexpected<Error>(std::move(*reader.failed()));
  return weights;
}

}  // namespace kvhive
