#include "tests/models/gpu/gpu_model.hpp"

#include <cstdlib>
#include <stdexcept>

#include "base/round_up.hpp"
#include "models/gpu/gpu_weights.hpp"
#include "models/config/load_model_config.hpp"

namespace kvhive {
namespace {

template <class T>
T taken(Expected<T> expected) {
  if (!expected) throw std::runtime_error(expected.error().text);
  if constexpr (!std::is_void_v<T>) return std::move(*expected);
}

}  // namespace

GpuModel::GpuModel(const std::filesystem::path& directory, GpuLimits limits, Dtype kv_dtype,
                   std::uint32_t block_size, std::uint32_t blocks, bool is_grouped,
                   const std::vector<std::filesystem::path>& adapters)
    : config_(taken(load_model_config(directory))),
      groups_(is_grouped ? group_layers(config_) : one_group(config_)),
      limits_(limits),
      kv_dtype_(kv_dtype),
      block_size_(block_size),
      blocks_(blocks) {
#if defined(KVHIVE_GPU_TESTS)
  // A GPU's own products depend on the batch.
  if (std::getenv("KVHIVE_BATCH_INVARIANT") != nullptr) limits_.is_batch_invariant = true;
#endif
  limits_.blocks = static_cast<std::int32_t>(blocks);
  limits_.kv_tokens = static_cast<std::int32_t>(blocks * block_size);
  std::vector<LoraFile> files;
  for (const std::filesystem::path& adapter : adapters)
    files.push_back(taken(LoraFile::open(adapter, config_)));
  adapters_ = GpuAdapters(files, config_.dtype, GpuWeights(config_).bytes);
  limits_.adapter_rank = adapters_.most_rank();
  weights_bytes_ = round_up(adapters_.end(), device_.facts().shared_granularity);
  weights_fd_ = taken(device_.create_shared(weights_bytes_));
  weights_ = taken(SharedDeviceMemory::map(device_, weights_fd_.get(), weights_bytes_));
  taken(upload_weights(device_, config_, taken(SafetensorsDirectory::open(directory)),
                       weights_.data()));
  taken(adapters_.upload(device_, files, weights_.data()));
  stream_ = taken(OrderedStream::open(device_));
  transformer_ = std::make_unique<GpuTransformer>(taken(
      GpuTransformer::create(device_, config_, weights_.data(), limits_, groups_, adapters_)));
}

void GpuModel::make_arena() {
  const std::size_t bytes =
      kv_layout(config_, groups_, block_size_, kv_dtype_).block_bytes() * blocks_;
  arena_ = taken(DeviceBuffer::allocate(device_, bytes));
  taken(device_.fill(arena_.data(), std::byte{0xFF}, bytes, transformer_->stream().handle()));
}

PagedRunner GpuModel::runner(std::uint32_t seed) {
  make_arena();
  const auto run = [this](const ForwardBatch& batch, const KvLayout& of, std::span<float> logits) {
    std::ranges::copy(taken(forward(batch, of)), logits.begin());
  };
  return {config_, run, kv_dtype_, block_size_, blocks_, seed, groups_};
}

Expected<std::vector<float>> GpuModel::forward(const ForwardBatch& batch, const KvLayout& layout) {
  std::vector<SampleChoice> of_rows = choices;
  of_rows.resize(batch.logit_rows.size());
  auto started = transformer_->start(batch, of_rows, arena_.data(), layout);
  if (!started) return forward_error(started);
  auto sampled = transformer_->wait();
  if (!sampled) return forward_error(sampled);
  samples = *sampled;
  std::vector<float> logits(batch.logit_rows.size() * config_.vocab_size);
  auto copied = device_.copy(reinterpret_cast<std::byte*>(logits.data()),
                             reinterpret_cast<const std::byte*>(transformer_->logits()),
                             logits.size() * sizeof(float), stream_.handle());
  if (copied) copied = stream_.finish();
  if (!copied) return forward_error(copied);
  return logits;
}

GpuTransformer GpuModel::another() {
  again_ = taken(SharedDeviceMemory::map(device_, weights_fd_.get(), weights_bytes_));
  return taken(
      GpuTransformer::create(device_, config_, again_.data(), limits_, groups_, adapters_));
}

}  // namespace kvhive
