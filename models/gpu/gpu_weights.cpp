#include "models/gpu/gpu_weights.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <functional>
#include <span>

#include "base/round_up.hpp"
#include "device/device_memory.hpp"
#include "kernels/element.hpp"
#include "models/gpu/gpu_support.hpp"
#include "models/rope.hpp"

namespace kvhive {
namespace {

constexpr std::size_t kAlignment = 256;  ///< of tensors: what products read fastest
constexpr std::size_t kPieceBytes = std::size_t{8} << 20;

/// Assigns offsets to tensors, one after the other.
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
  std::size_t norm(const ModelTensor& listed) {
    return add(listed.weight_name(), listed.weight_shape(), Dtype::f32);
  }
  /// Adds several matrices of the same shape as one matrix: their rows without a gap, then their
  /// biases without a gap.
  GpuMatrix matrix(std::span<const ModelTensor> stacked) {
    const ModelTensor& first = stacked.front();
    GpuMatrix made;
    made.N = first.rows * static_cast<std::int32_t>(stacked.size());
    made.K = first.columns;
    for (const ModelTensor& listed : stacked)
      place(made.weights, listed.weight_name(), listed.weight_shape(), dtype_);
    // A bias has the dtype in which its product is stored.
    const Dtype bias_dtype = first.product == ProductDtype::f32 ? Dtype::f32 : dtype_;
    if (first.has_bias)
      for (const ModelTensor& listed : stacked)
        place(made.bias, listed.bias_name(), listed.bias_shape(), bias_dtype);
    return made;
  }

 private:
  /// Adds a tensor of a stack. The first goes to an aligned offset, which is stored in `begin`;
  /// each other begins where the tensor before it ends.
  void place(std::size_t& begin, const std::string& name, const std::vector<std::int64_t>& shape,
             Dtype dtype) {
    if (begin == kNoTensor) {
      begin = add(name, shape, dtype);
      return;
    }
    weights_.tensors.push_back({name, shape, dtype, weights_.bytes});
    weights_.bytes += weights_.tensors.back().bytes();
  }

  GpuWeights& weights_;
  Dtype dtype_;
};

/// The tensors that are multiplied in one product: the first of `rest` and those that are fused
/// with it.
std::span<const ModelTensor> stack_of(std::span<const ModelTensor> rest) {
  std::size_t count = 1;
  while (count < rest.size() && rest[count].fusion == Fusion::with_previous) ++count;
  return rest.first(count);
}

/// Uploads through two pieces of page-locked memory in turn: one is filled while the other is
/// copied to the device.
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

  /// \param fill  fill(piece, first) writes the upload's bytes from offset `first` on into `piece`;
  ///              `first` is a multiple of 4
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
  layers.resize(config.layers);
  const auto listed = model_tensors(config);
  for (auto rest = std::span(listed); !rest.empty();) {
    const auto stack = stack_of(rest);
    const ModelTensor& tensor = stack.front();
    const auto weight = static_cast<std::size_t>(tensor.weight);
    switch (tensor.use) {
      case ModelTensor::Use::embedding: embedding = builder.matrix(stack).weights; break;
      case ModelTensor::Use::final_norm: final_norm = builder.norm(tensor); break;
      case ModelTensor::Use::lm_head: lm_head = builder.matrix(stack); break;
      case ModelTensor::Use::layer:
        if (tensor.is_vector())
          layers[tensor.layer].norms[weight] = builder.norm(tensor);
        else
          layers[tensor.layer].products[weight] = builder.matrix(stack);
    }
    rest = rest.subspan(stack.size());
  }
  if (config.tie_word_embeddings)
    lm_head = {embedding, kNoTensor, config.vocab_size, config.hidden_size};
}

Expected<void> upload_weights(Device& device, const ModelConfig& config,
                              const SafetensorsDirectory& files, std::byte* region,
                              const LoadProgress& progress) {
  if (auto supported = check_gpu_model(config); !supported) return supported;
  if (auto supported = check_gpu_files(config, files); !supported) return supported;
  auto uploader = Uploader::create(device);
  if (!uploader) return forward_error(uploader);
  auto sent = send_all(*uploader, config, files, region, progress);
  // Also after a failure: what is on its way reads memory that goes now.
  auto arrived = uploader->finish();
  return sent ? arrived : sent;
}

}  // namespace kvhive
