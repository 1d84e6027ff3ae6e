#pragma once
// A GpuTransformer on a fake device with everything it needs, for a PagedRunner.

#include <cstddef>
#include <filesystem>
#include <vector>

#include "device/device_memory.hpp"
#include "models/gpu/gpu_transformer.hpp"
#include "tests/device/fake_device.hpp"
#include "tests/models/paged_runner.hpp"

namespace kvhive {

class GpuModel {
 public:
  /// \param limits  kv_tokens and blocks are made to fit the arena
  GpuModel(const std::filesystem::path& directory, GpuLimits limits, Dtype kv_dtype,
           std::uint32_t block_size, std::uint32_t blocks);

  /// A runner over an arena of poison; one at a time.
  PagedRunner runner(std::uint32_t seed);
  /// Logits of one step's rows, after sampling with `choices` (greedy if there are none).
  Expected<std::vector<float>> forward(const ForwardBatch& batch, const KvLayout& layout);

  testing::FakeDevice& device() { return device_; }
  const ModelConfig& config() const { return config_; }
  GpuTransformer& transformer() { return *transformer_; }
  /// Another one over the same weights, mapped once more, as another process has them.
  GpuTransformer another();

  std::vector<SampleChoice> choices;
  GpuSamples samples;  ///< of the last step

 private:
  testing::FakeDevice device_;
  ModelConfig config_;
  GpuLimits limits_;
  Dtype kv_dtype_;
  std::uint32_t block_size_, blocks_;
  UniqueFd weights_fd_;
  std::size_t weights_bytes_ = 0;
  SharedDeviceMemory weights_, again_;
  DeviceBuffer arena_;
  OrderedStream stream_;
  std::unique_ptr<GpuTransformer> transformer_;
};

}  // namespace kvhive
