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

/// Looks tensors up one after the other. After the first failure everything else is skipped: what
/// then comes back is never used, since load() returns the error.
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

  std::optional<Matmul> matmul(const std::string& name, std::int32_t n, std::int32_t k,
                               bool biased) {
    const auto weights = tensor(name + ".weight", {n, k});
    auto bias = biased ? vector(name + ".bias", n) : std::vector<float>();
    if (failed_) return std::nullopt;
    return Matmul({weights.dtype, n, k, weights.bytes}, std::move(bias));
  }

  std::optional<Error>& failed() { return failed_; }

 private:
  const SafetensorsDirectory& files_;
  std::size_t total_;
  const LoadProgress& progress_;
  std::size_t done_ = 0;
  std::optional<Error> failed_;
};

std::optional<LayerWeights> read_layer(TensorReader& reader, const ModelConfig& config,
                                       std::int32_t layer) {
  const std::string prefix = "model.layers." + std::to_string(layer) + ".";
  const std::string attention = prefix + "self_attn.";
  const std::string mlp = prefix + "mlp.";
  const std::int32_t hidden = config.hidden_size;
  const std::int32_t inner = config.intermediate_size;
  const std::int32_t q_width = config.heads * config.head_size;
  const std::int32_t kv_width = config.kv_heads * config.head_size;
  const auto norm = [&](const std::string& name, std::int32_t size) {
    return reader.vector(name + ".weight", size);
  };

  auto input_norm = norm(prefix + "input_layernorm", hidden);
  auto post_norm = norm(prefix + "post_attention_layernorm", hidden);
  auto q_norm =
      config.qk_norm ? norm(attention + "q_norm", config.head_size) : std::vector<float>();
  auto k_norm =
      config.qk_norm ? norm(attention + "k_norm", config.head_size) : std::vector<float>();
  auto q = reader.matmul(attention + "q_proj", q_width, hidden, config.qkv_bias);
  auto k = reader.matmul(attention + "k_proj", kv_width, hidden, config.qkv_bias);
  auto v = reader.matmul(attention + "v_proj", kv_width, hidden, config.qkv_bias);
  auto o = reader.matmul(attention + "o_proj", hidden, q_width, config.output_bias);
  auto gate = reader.matmul(mlp + "gate_proj", inner, hidden, config.mlp_bias);
  auto up = reader.matmul(mlp + "up_proj", inner, hidden, config.mlp_bias);
  auto down = reader.matmul(mlp + "down_proj", hidden, inner, config.mlp_bias);
  if (reader.failed()) return std::nullopt;
  return LayerWeights{std::move(input_norm), std::move(post_norm), std::move(q_norm),
                      std::move(k_norm),     std::move(*q),        std::move(*k),
                      std::move(*v),         std::move(*o),        std::move(*gate),
                      std::move(*up),        std::move(*down)};
}

std::size_t tensors_in(const ModelConfig& config) {
  const std::size_t per_layer = 9 + (config.qkv_bias ? 3 : 0) + (config.output_bias ? 1 : 0) +
                                (config.mlp_bias ? 3 : 0) + (config.qk_norm ? 2 : 0);
  return 2 + per_layer * config.layers + (config.tie_word_embeddings ? 0 : 1);
}

}  // namespace

void read_floats(const TensorView& tensor, std::size_t first, std::span<float> out) {
  KV_CHECK((first + out.size()) * bytes_of(tensor.dtype) <= tensor.bytes.size(), first, out.size());
  const std::byte* from = tensor.bytes.data() + first * bytes_of(tensor.dtype);
  switch (tensor.dtype) {
    case Dtype::f32: return convert_floats<float>(from, out, [](float value) { return value; });
    case Dtype::bf16: return convert_floats<std::uint16_t>(from, out, float_of_bf16);
    case Dtype::f16: return convert_floats<std::uint16_t>(from, out, float_of_f16);
    default: KV_CHECK(false, int(tensor.dtype));  // no reader of weights makes such tensors
  }
}

Expected<TransformerWeights> TransformerWeights::load(const std::filesystem::path& directory,
                                                      const ModelConfig& config,
                                                      const LoadProgress& progress) {
  auto files = SafetensorsDirectory::open(directory);
  if (!files) return forward_error(files);
  TransformerWeights weights;
  weights.files = std::move(*files);
  TensorReader reader(weights.files, tensors_in(config), progress);

  weights.embedding =
      reader.tensor("model.embed_tokens.weight", {config.vocab_size, config.hidden_size});
  weights.final_norm = reader.vector("model.norm.weight", config.hidden_size);
  for (std::int32_t layer = 0; layer < config.layers && !reader.failed(); ++layer)
    if (auto read = read_layer(reader, config, layer)) weights.layers.push_back(std::move(*read));
  if (config.tie_word_embeddings && !reader.failed())
    weights.lm_head = Matmul(
        {weights.embedding.dtype, config.vocab_size, config.hidden_size, weights.embedding.bytes},
        {});
  else
    weights.lm_head = reader.matmul("lm_head", config.vocab_size, config.hidden_size, false);
  if (reader.failed()) return tl::unexpected<Error>(std::move(*reader.failed()));
  return weights;
}

}  // namespace kvhive
