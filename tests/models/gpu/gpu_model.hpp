#pragma once
// A GpuTransformer on a fake device, with all it needs, as a PagedRunner uses it. With
// KVHIVE_GPU_TESTS: on the machine's GPU.

#include <cstddef>
#include <filesystem>
#include <type_traits>
#include <vector>

#include "device/device_memory.hpp"
#include "models/gpu/gpu_transformer.hpp"
#if defined(KVHIVE_GPU_TESTS)
#include "tests/device/real_device.hpp"
#else
#include "tests/device/fake_device.hpp"
#endif
#include "tests/models/paged_runner.hpp"

namespace kvhive {

#if defined(KVHIVE_GPU_TESTS)
using TestedDevice = testing::RealDevice;
#else
using TestedDevice = testing::FakeDevice;
#endif

class GpuModel {
 public:
  /// \param limits kv_tokens and blocks are set to fit the arena
  /// \param is_grouped  layers of different windows in groups with tables of their own
  /// \param adapters  directories
  GpuModel(const std::filesystem::path& directory, GpuLimits limits, Dtype kv_dtype,
           std::uint32_t block_size, std::uint32_t blocks, bool is_grouped = false,
           const std::vector<std::filesystem::path>& adapters = {});

  /// A runner over an arena full of poison. Only one at a time.
  PagedRunner runner(std::uint32_t seed);
  /// One step: the logits of its rows, after sampling with `choices` (greedy if empty).
  Expected<std::vector<float>> forward(const ForwardBatch& batch, const KvLayout& layout);
  /// Makes an arena of its blocks, full of poison; runner() does so, too.
  void make_arena();

  TestedDevice& device() { return device_; }
  const ModelConfig& config() const { return config_; }
  /// Whether rows of its products do not depend on each other. Those of a fake device never do.
  bool is_batch_invariant() const {
    return std::is_same_v<TestedDevice, testing::FakeDevice> || limits_.is_batch_invariant;
  }
  GpuTransformer& transformer() { return *transformer_; }
  /// A second transformer over the same weights, which are mapped once more, as in another process.
  GpuTransformer another();

  std::vector<SampleChoice> choices;
  GpuSamples samples;  ///< of the last step

 private:
  TestedDevice device_;
  ModelConfig config_;
  LayerGroups groups_;
  GpuLimits limits_;
  Dtype kv_dtype_;
  std::uint32_t block_size_, blocks_;
  GpuAdapters adapters_;
  UniqueFd weights_fd_;
  std::size_t weights_bytes_ = 0;
  SharedDeviceMemory weights_, again_;
  DeviceBuffer arena_;
  OrderedStream stream_;
  std::unique_ptr<GpuTransformer> transformer_;
};

}  // namespace kvhive
