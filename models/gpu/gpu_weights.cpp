#include "models/gpu/gpu_weights.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <functional>
#include <span>

#include "base/round_up.hpp"
#include "device/device_memory.hpp"
#include "kernels/element.hpp"
#include "models/rope.hpp"

namespace kvhive {
namespace {

constexpr std::size_t kAlignment = 256;  ///< of tensors: what products read fastest
constexpr std::size_t kPieceBytes = std::size_t{8} << 20;

/// Adds tensors one behind the other.
class Builder {
 public:
  Builder(GpuWeights& weights, Dtype dtype) : weights_(weights), dtype_(dtype) {}

  std::size_t reserve(std::size_t bytes) {
    const std::size_t offset = round_up(weights_.bytes, kAlignment);
    weights_.bytes = offset + bytes;
    return offset;
  }
  /// \returns its offset
  std::size_t add(const std::string& name, std::vector<std::int64_t> shape, Dtype dtype) {
    GpuWeights::Tensor tensor{name, std::move(shape), dtype, 0};
    tensor.offset = reserve(tensor.bytes());
    weights_.tensors.push_back(std::move(tensor));
    return weights_.tensors.back().offset;
  }
  std::size_t norm(const std::string& name, std::int64_t width) {
    return add(name + ".weight", {width}, Dtype::f32);
  }

  enum class Bias { none, has };
  /// The rows of several matrices, and their biases, with nothing between them.
  /// \param out  of the product, and so of its bias
  GpuMatrix matrix(const std::vector<std::string>& names, std::int32_t rows, std::int32_t K,
                   Bias bias, Dtype out) {
    GpuMatrix made;
    made.N = rows * static_cast<std::int32_t>(names.size());
    made.K = K;
    made.weights = stack(names, ".weight", {rows, K}, dtype_);
    if (bias == Bias::has) made.bias = stack(names, ".bias", {rows}, out);
    return made;
  }

 private:
  std::size_t stack(const std::vector<std::string>& names, const char* suffix,
                    const std::vector<std::int64_t>& shape, Dtype dtype) {
    const std::size_t first = weights_.tensors.size();
    for (const auto& name : names) {
      const bool follows = weights_.tensors.size() > first;
      const std::size_t end = weights_.bytes;
      if (!follows) {
        add(name + suffix, shape, dtype);
        continue;
      }
      weights_.tensors.push_back({name + suffix, shape, dtype, end});
      weights_.bytes = end + weights_.tensors.back().bytes();
    }
    return weights_.tensors[first].offset;
  }

  GpuWeights& weights_;
  Dtype dtype_;
};

GpuLayer add_layer(Builder& builder, const ModelConfig& config, std::int32_t index) {
  using Bias = Builder::Bias;
  const auto bias = [](bool has) { return has ? Bias::has : Bias::none; };
  const std::string prefix = "model.layers." + std::to_string(index) + ".";
  const std::string attention = prefix + "self_attn.", mlp = prefix + "mlp.";
  const std::int32_t hidden = config.hidden_size, inner = config.intermediate_size;
  const std::int32_t q_width = config.heads * config.head_size;
  const std::int32_t kv_width = config.kv_heads * config.head_size;
  GpuLayer layer;
  layer.input_norm = builder.norm(prefix + "input_layernorm", hidden);
  layer.post_attention_norm = builder.norm(prefix + "post_attention_layernorm", hidden);
  if (config.qk_norm) {
    layer.q_norm = builder.norm(attention + "q_norm", config.head_size);
    layer.k_norm = builder.norm(attention + "k_norm", config.head_size);
  }
  layer.q =
      builder.matrix({attention + "q_proj"}, q_width, hidden, bias(config.qkv_bias), config.dtype);
  layer.k =
      builder.matrix({attention + "k_proj"}, kv_width, hidden, bias(config.qkv_bias), config.dtype);
  layer.v =
      builder.matrix({attention + "v_proj"}, kv_width, hidden, bias(config.qkv_bias), config.dtype);
  layer.o =
      builder.matrix({attention + "o_proj"}, hidden, q_width, bias(config.output_bias), Dtype::f32);
  layer.gate_up = builder.matrix({mlp + "gate_proj", mlp + "up_proj"}, inner, hidden,
                                 bias(config.mlp_bias), config.dtype);
  layer.down =
      builder.matrix({mlp + "down_proj"}, hidden, inner, bias(config.mlp_bias), Dtype::f32);
  return layer;
}

/// Two pieces of page-locked memory in turn: one is filled while the other is on its way.
class Uploader {
 public:
  static Expected<Uploader> create(Device& device) {
    Uploader made(device);
    for (Piece& piece : made.pieces_) {
      auto memory = StagingBuffer::allocate(device, kPieceBytes);
      if (!memory) return forward_error(memory);
      auto stream = OrderedStream::open(device);
      if (!stream) return forward_error(stream);
      piece = {std::move(*memory), std::move(*stream)};
    }
    return made;
  }

  /// \param fill  writes the bytes from the given one on, a multiple of 4
  Expected<void> put(std::byte* to, std::size_t bytes,
                     const std::function<void(std::span<std::byte>, std::size_t)>& fill) {
    for (std::size_t at = 0; at < bytes; at += kPieceBytes) {
      const Piece& piece = pieces_[next_++ % pieces_.size()];
      if (auto ready = piece.stream.finish(); !ready) return ready;
      const std::size_t count = std::min(kPieceBytes, bytes - at);
      fill({piece.memory.data(), count}, at);
      if (auto sent = device_.copy(to + at, piece.memory.data(), count, piece.stream.handle());
          !sent)
        return sent;
    }
    return {};
  }

  Expected<void> finish() {
    Expected<void> all;
    for (const Piece& piece : pieces_)
      if (auto done = piece.stream.finish(); !done && all) all = std::move(done);
    return all;
  }

 private:
  struct Piece {
    StagingBuffer memory;
    OrderedStream stream;
  };

  explicit Uploader(Device& device) : device_(device) {}

  Device& device_;
  std::array<Piece, 2> pieces_;
  std::size_t next_ = 0;
};

void convert(const TensorView& from, std::size_t first, Dtype to, std::span<std::byte> out) {
  const std::size_t count = out.size() / bytes_of(to);
  if (from.dtype == to) {
    std::memcpy(out.data(), from.bytes.data() + first * bytes_of(to), out.size());
    return;
  }
  for (std::size_t i = 0; i < count; ++i)
    store_element(out.data(), i, load_element(from.bytes.data(), first + i, from.dtype), to);
}

Expected<void> send_all(Uploader& uploader, const ModelConfig& config,
                        const SafetensorsDirectory& files, std::byte* region,
                        const LoadProgress& progress) {
  const GpuWeights weights(config);
  const Rope rope(config);
  const auto frequencies = std::as_bytes(rope.frequencies());
  auto sent = uploader.put(region + weights.frequencies, frequencies.size(),
                           [&](std::span<std::byte> out, std::size_t first) {
                             std::ranges::copy(frequencies.subspan(first, out.size()), out.begin());
                           });
  for (std::size_t i = 0; i < weights.tensors.size() && sent; ++i) {
    const GpuWeights::Tensor& tensor = weights.tensors[i];
    auto found = files.find(tensor.name, tensor.shape);
    if (!found) return forward_error(found);
    sent = uploader.put(region + tensor.offset, tensor.bytes(),
                        [&](std::span<std::byte> out, std::size_t first) {
                          convert(*found, first / bytes_of(tensor.dtype), tensor.dtype, out);
                        });
    if (sent && progress) progress(i + 1, weights.tensors.size());
  }
  return sent;
}

}  // namespace

std::size_t GpuWeights::Tensor::bytes() const {
  std::size_t all = bytes_of(dtype);
  for (const std::int64_t dim : shape) all *= static_cast<std::size_t>(dim);
  return all;
}

GpuWeights::GpuWeights(const ModelConfig& config) {
  Builder builder(*this, config.dtype);
  frequencies = builder.reserve(config.head_size / 2 * sizeof(float));
  embedding = builder.add("model.embed_tokens.weight", {config.vocab_size, config.hidden_size},
                          config.dtype);
  for (std::int32_t layer = 0; layer < config.layers; ++layer)
    layers.push_back(add_layer(builder, config, layer));
  final_norm = builder.norm("model.norm", config.hidden_size);
  if (config.tie_word_embeddings)
    lm_head = {embedding, kNoTensor, config.vocab_size, config.hidden_size};
  else
    lm_head = builder.matrix({"lm_head"}, config.vocab_size, config.hidden_size,
                             Builder::Bias::none, Dtype::f32);
}

Expected<void> upload_weights(Device& device, const ModelConfig& config,
                              const SafetensorsDirectory& files, std::byte* region,
                              const LoadProgress& progress) {
  auto uploader = Uploader::create(device);
  if (!uploader) return forward_error(uploader);
  auto sent = send_all(*uploader, config, files, region, progress);
  // Also after a failure: what is on its way reads memory that goes now.
  auto arrived = uploader->finish();
  return sent ? arrived : sent;
}

}  // namespace kvhive
