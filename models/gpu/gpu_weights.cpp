#include "models/gpu/gpu_weights.hpp"

#include <optional>
#include <span>
#include <utility>

#include "base/round_up.hpp"
#include "kernels/element.hpp"
#include "models/gpu/gpu_support.hpp"
#include "models/gpu/uploader.hpp"
#include "models/quantization/coded_rows.hpp"
#include "models/quantized_matrix.hpp"
#include "models/rope.hpp"

namespace kvhive {
namespace {

constexpr std::size_t kTensorAlignment = 256;  ///< of tensors: what products read fastest

/// Assigns offsets to tensors, one after the other.
class Builder {
 public:
  Builder(GpuWeights& weights, const ModelConfig& config) : weights_(weights), config_(config) {}

  std::size_t reserve(std::size_t bytes) {
    const std::size_t offset = round_up(weights_.bytes, kTensorAlignment);
    weights_.bytes = offset + bytes;
    return offset;
  }
  Dtype dtype() const { return config_.dtype; }
  /// The tensors that are added next are of this entry of model_tensors(), and of those after it.
  void next_listed(std::size_t listed) { listed_ = listed; }

  /// \returns its offset
  std::size_t norm(const ModelTensor& listed) {
    const std::size_t offset = add(listed.weight_name(), listed.weight_shape(), Dtype::f32);
    if (config_.architecture->family == Family::gemma)
      weights_.tensors.back().made = GpuWeights::Made::plus_one;
    return offset;
  }
  std::size_t key_halves(const ModelTensor& kv_b) {
    const LatentShape& shape = config_.latent;
    const std::size_t count = std::size_t(config_.heads) * shape.rank * shape.nope;
    const std::size_t offset = reserve(count * bytes_of(config_.dtype));
    weights_.tensors.push_back({kv_b.weight_name(), kv_b.weight_shape(), config_.dtype, offset,
                                count, GpuWeights::Made::key_halves, listed_});
    return offset;
  }
  /// Adds several matrices of the same shape as one matrix: their rows without a gap, then their
  /// biases without a gap.
  GpuMatrix matrix(std::span<const ModelTensor> stacked) {
    const ModelTensor& first = stacked.front();
    const std::size_t first_listed = listed_;
    GpuMatrix made;
    made.N = first.rows * static_cast<std::int32_t>(stacked.size());
    made.K = first.columns;
    for (const ModelTensor& listed : stacked) {
      place(made.weights, listed.weight_name(), listed.weight_shape(),
            std::size_t(listed.rows) * std::size_t(listed.columns), config_.dtype);
      if (listed.packed) weights_.tensors.back().made = GpuWeights::Made::unpacked;
      ++listed_;
    }
    listed_ = first_listed;
    // A bias has the dtype in which its product is stored.
    const Dtype bias_dtype = first.product == ProductDtype::f32 ? Dtype::f32 : config_.dtype;
    if (first.has_bias)
      for (const ModelTensor& listed : stacked)
        place(made.bias, listed.bias_name(), listed.bias_shape(), std::size_t(listed.rows),
              bias_dtype);
    return made;
  }

 private:
  std::size_t add(const std::string& name, const std::vector<std::int64_t>& shape, Dtype dtype) {
    std::size_t begin = kNoTensor, count = 1;
    for (const std::int64_t dim : shape) count *= static_cast<std::size_t>(dim);
    place(begin, name, shape, count, dtype);
    return begin;
  }

  /// Adds a tensor of a stack. The first goes to an aligned offset, which is stored in `begin`;
  /// each other begins where the tensor before it ends.
  void place(std::size_t& begin, const std::string& name, const std::vector<std::int64_t>& shape,
             std::size_t count, Dtype dtype) {
    std::size_t offset = weights_.bytes;
    if (begin == kNoTensor)
      begin = offset = reserve(count * bytes_of(dtype));
    else
      weights_.bytes += count * bytes_of(dtype);
    weights_.tensors.push_back(
        {name, shape, dtype, offset, count, GpuWeights::Made::as_it_is, listed_});
  }

  GpuWeights& weights_;
  const ModelConfig& config_;
  std::size_t listed_ = 0;
};

/// The tensors that are multiplied in one product: the first of `rest` and those that are fused
/// with it.
std::span<const ModelTensor> stack_of(std::span<const ModelTensor> rest) {
  std::size_t count = 1;
  while (count < rest.size() && rest[count].fusion == Fusion::with_previous) ++count;
  return rest.first(count);
}

void place_layer_weight(Builder& builder, std::span<const ModelTensor> stack, GpuLayer& layer) {
  const ModelTensor& tensor = stack.front();
  const auto weight = static_cast<std::size_t>(tensor.weight);
  if (tensor.is_vector()) {
    layer.norms[weight] = builder.norm(tensor);
    return;
  }
  const GpuMatrix matrix = builder.matrix(stack);
  if (tensor.expert <= 0) layer.products[weight] = matrix;
  // All experts' weights have the same sizes, so all are as far apart as the first two are.
  if (tensor.expert == 1 && tensor.weight == LayerWeight::expert_gate)
    layer.expert_step = static_cast<std::int64_t>(
        (matrix.weights - layer.products[weight].weights) / bytes_of(builder.dtype()));
  if (tensor.weight == LayerWeight::kv_b) layer.to_latent = builder.key_halves(tensor);
}

/// A tensor that is not as in the files: of its bytes in the region those from `first` on.
class Conversion {
 public:
  Conversion(const GpuWeights::Tensor& tensor, const ModelTensor& listed, const TensorView& from,
             const LatentShape& latent)
      : tensor_(tensor), listed_(listed), from_(from), latent_(latent) {}

  void operator()(std::span<std::byte> out, std::size_t first) const {
    using Made = GpuWeights::Made;
    const std::size_t size = bytes_of(tensor_.dtype);
    const float added = tensor_.made == Made::plus_one ? 1 : 0;
    for (std::size_t i = 0; i < out.size() / size; ++i) {
      const std::size_t at = first / size + i;
      const float value = load_element(from_.bytes.data(), place_of(at), from_.dtype);
      store_element(out.data(), i, value + added, tensor_.dtype);
    }
  }

 private:
  /// Where the files have the tensor's element `at`.
  std::size_t place_of(std::size_t at) const {
    switch (tensor_.made) {
      case GpuWeights::Made::key_halves: return of_key_half(at);
      case GpuWeights::Made::unpacked: return of_packed(at);
      default: return at;
    }
  }
  std::size_t of_packed(std::size_t at) const {
    const std::size_t columns = listed_.columns, row = at / columns, column = at % columns;
    const std::size_t wide = listed_.packed->wide, expert = listed_.expert;
    return (expert * columns + column) * wide + std::size_t(listed_.packed->first) + row;
  }
  /// The element of kv_b_proj, [H * (nope + value), rank], that is element `at` of [H, rank, nope].
  std::size_t of_key_half(std::size_t at) const {
    const std::size_t nope = latent_.nope, rank = latent_.rank;
    const std::size_t head = at / (rank * nope), column = at / nope % rank, row = at % nope;
    return (head * (nope + latent_.value) + row) * rank + column;
  }

  const GpuWeights::Tensor& tensor_;
  const ModelTensor& listed_;
  const TensorView& from_;
  const LatentShape& latent_;
};

/// The tensors that are computed here: frequencies, scales of the cache, and ones.
struct ComputedTensors {
  Rope rope;
  std::optional<Rope> sliding;
  std::vector<float> kv_scales;
  std::vector<float> ones{};

  static Expected<ComputedTensors> of(const ModelConfig& config,
                                      const SafetensorsDirectory& files) {
    ComputedTensors made{Rope(config), {}, {}};
    if (config.has_sliding_rope()) made.sliding.emplace(config.head_size, config.rope.sliding);
    if (config.has_l2_norms) made.ones.assign(static_cast<std::size_t>(config.head_size), 1.0f);
    for (std::int32_t layer = 0; layer < config.layers; ++layer) {
      const auto scales = read_kv_scales(files, layer);
      if (!scales) return forward_error(scales);
      const KvScaleValues values = scales->value_or(KvScaleValues{});
      made.kv_scales.insert(made.kv_scales.end(), {values.k, values.v});
    }
    return made;
  }

  Expected<void> send(Uploader& uploader, const GpuWeights& weights, std::byte* region) const {
    const auto put = [&](std::size_t offset, std::span<const float> values) {
      return uploader.put(region + offset, std::as_bytes(values));
    };
    auto sent = put(weights.frequencies, rope.frequencies());
    if (sent && sliding) sent = put(weights.sliding_frequencies, sliding->frequencies());
    if (sent) sent = put(weights.kv_scales, kv_scales);
    if (sent && !ones.empty()) sent = put(weights.ones, ones);
    return sent;
  }
};

/// A tensor's elements: in the files, or in `values` if the files have it in codes.
Expected<TensorView> elements_of(const GpuWeights::Tensor& tensor, const ModelTensor& listed,
                                 const ModelConfig& config, const SafetensorsDirectory& files,
                                 std::vector<std::byte>& values) {
  if (listed.use == ModelTensor::Use::embedding || tensor.name != listed.weight_name() ||
      !is_quantized(files, listed, config.quantization))
    return files.find(tensor.name, tensor.shape);
  const Dtype dtype = dtype_of_quantized(config.dtype);
  const auto coded = read_coded(files, listed, config.quantization);
  if (!coded) return forward_error(coded);
  values = values_of(*coded, dtype);
  return TensorView{dtype, values};
}

Expected<void> send_all(Uploader& uploader, const ModelConfig& config,
                        const SafetensorsDirectory& files, std::byte* region,
                        const LoadProgress& progress) {
  const GpuWeights weights(config);
  const auto listed = model_tensors(config);
  if (auto used = check_codes_are_used(files, config, listed); !used) return used;
  const auto computed = ComputedTensors::of(config, files);
  if (!computed) return forward_error(computed);
  auto sent = computed->send(uploader, weights, region);
  for (std::size_t i = 0; i < weights.tensors.size() && sent; ++i) {
    const GpuWeights::Tensor& tensor = weights.tensors[i];
    std::vector<std::byte> values;
    const auto found = elements_of(tensor, listed[tensor.listed], config, files, values);
    if (!found) return forward_error(found);
    std::byte* const to = region + tensor.offset;
    sent = tensor.made == GpuWeights::Made::as_it_is
               ? uploader.put(to, *found, tensor.dtype)
               : uploader.put(to, tensor.bytes(),
                              Conversion(tensor, listed[tensor.listed], *found, config.latent));
    if (sent && progress) progress(i + 1, weights.tensors.size());
  }
  return sent;
}

}  // namespace

GpuWeights::GpuWeights(const ModelConfig& config) {
  Builder builder(*this, config);
  const std::size_t frequency_bytes = config.rotated_size() / 2 * sizeof(float);
  frequencies = builder.reserve(frequency_bytes);
  if (config.has_sliding_rope()) sliding_frequencies = builder.reserve(frequency_bytes);
  if (config.has_l2_norms) ones = builder.reserve(std::size_t(config.head_size) * sizeof(float));
  kv_scales = builder.reserve(std::size_t(config.layers) * 2 * sizeof(float));
  layers.resize(config.layers);
  const auto listed = model_tensors(config);
  for (auto rest = std::span(listed); !rest.empty();) {
    const auto stack = stack_of(rest);
    const ModelTensor& tensor = stack.front();
    builder.next_listed(listed.size() - rest.size());
    switch (tensor.use) {
      case ModelTensor::Use::embedding: embedding = builder.matrix(stack).weights; break;
      case ModelTensor::Use::final_norm: final_norm = builder.norm(tensor); break;
      case ModelTensor::Use::lm_head: lm_head = builder.matrix(stack); break;
      case ModelTensor::Use::layer: place_layer_weight(builder, stack, layers[tensor.layer]);
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
  auto uploader = Uploader::create(device);
  if (!uploader) return forward_error(uploader);
  auto sent = send_all(*uploader, config, files, region, progress);
  // Also after a failure: what is on its way reads memory that goes now.
  auto arrived = uploader->finish();
  return sent ? arrived : sent;
}

}  // namespace kvhive
