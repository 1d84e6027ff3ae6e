#pragma once
// The kernels and products of a model's forward pass, layer by layer, and of the sampler, on one
// stream.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/expected.hpp"
#include "device/device.hpp"
#include "kernels/cuda/cuda_kernels.hpp"
#include "models/gpu/gpu_adapters.hpp"
#include "models/gpu/before_layer.hpp"
#include "models/gpu/gpu_buffer_offsets.hpp"
#include "models/gpu/gpu_step.hpp"
#include "models/gpu/gpu_weights.hpp"

namespace kvhive {

class GpuForward {
 public:
  /// \param device  outlives this
  /// \param region  the weights, as upload_weights() lays them out
  GpuForward(Device& device, const ModelConfig& config, const LayerGroups& groups,
             const GpuLimits& limits, const std::byte* region, GpuAdapters adapters);

  const GpuBufferOffsets& offsets() const { return offsets_; }
  /// Call it once before the others.
  /// \param memory  offsets().bytes bytes of device memory
  void use(std::byte* memory, DeviceStream stream) {
    memory_ = memory;
    stream_ = stream;
  }
  std::byte* at(std::size_t offset) const { return memory_ + offset; }
  float* floats_at(std::size_t offset) const { return reinterpret_cast<float*>(at(offset)); }

  /// What steps over this arena are planned by.
  StepContext step_context(std::byte* kv_base, const KvLayout& layout) const;

  /// Queues everything of a step but the copy of its inputs and of its outputs.
  [[nodiscard]] Expected<void> compute(const GpuStep& step, std::byte* kv_base,
                                       const KvLayout& layout, const BeforeLayer& before_layer);

  /// Queues the logits of some rows of the last step, which go to offsets().logits.
  /// \param rows  [n] in device memory, n at most the limits' logit_rows
  [[nodiscard]] Expected<void> project(const std::int32_t* rows, std::int32_t n);

 private:
  std::int32_t* numbers_at(std::size_t offset) const {
    return reinterpret_cast<std::int32_t*>(at(offset));
  }
  const float* f32_at(std::size_t offset) const {
    return offset == kNoTensor ? nullptr : reinterpret_cast<const float*>(region_ + offset);
  }
  PagedAttentionArgs attention_args(const PagedKv& kv, std::int32_t window) const;
  PagedMlaArgs latent_args(const PagedLatents& kv) const;
  PagedKv layer_kv(std::byte* kv_base, const KvLayout& layout, std::int32_t layer) const;

  /// residual += delta, and its norm to `out`.
  [[nodiscard]] Expected<void> norm(const std::byte* delta, std::size_t weight, std::size_t out,
                                    std::int32_t n);
  /// The norm of `delta` in place, before it is added to the residual.
  [[nodiscard]] Expected<void> norm_delta(std::size_t weight, std::int32_t n);
  /// The norm of rows of f32.
  [[nodiscard]] Expected<void> norm_rows(std::size_t from, std::int64_t stride, std::size_t weight,
                                         std::int32_t width, std::size_t out, Dtype out_dtype,
                                         std::int32_t n);
  [[nodiscard]] Expected<void> multiply(std::size_t x, const GpuMatrix& matrix, std::size_t y,
                                        std::int32_t T, Dtype out);
  [[nodiscard]] Expected<void> multiply_adapted(const GpuStep& step, const GpuLayer& layer,
                                                LayerWeight weight, std::size_t x, std::size_t y) {
    return multiply_adapted(step, layer, weight, x, y, config_.dtype);
  }
  /// Where a product's rows go, and how far they are apart.
  struct Rows {
    std::size_t at;  ///< offset
    Dtype dtype;
    std::int64_t stride = 0;  ///< elements; 0: as wide as the product
  };
  /// Adds what the rows' adapters have beside a layer's matrix.
  /// \param in, out  its columns and rows
  [[nodiscard]] Expected<void> adapt(const GpuStep& step, const GpuLayer& layer, LayerWeight weight,
                                     std::size_t x, std::int32_t in, const Rows& y,
                                     std::int32_t out);
  /// The product of a layer's matrix, and what the rows' adapters add.
  [[nodiscard]] Expected<void> multiply_adapted(const GpuStep& step, const GpuLayer& layer,
                                                LayerWeight weight, std::size_t x, std::size_t y,
                                                Dtype out);
  /// A product of each head. \param args  with the strides from one head to the next
  [[nodiscard]] Expected<void> multiply_heads(RowProductArgs args);
  /// Gate times up: reads gate_up [rows, 2 * inner], writes `inner` [rows, inner].
  /// \param has_weighted_inputs  they are of pairs of tokens and experts, whose weights count now
  [[nodiscard]] Expected<void> gate(std::int32_t rows, std::int32_t inner,
                                    bool has_weighted_inputs = false);

  /// q, k and v of a layer, which are told where they are.
  [[nodiscard]] Expected<void> project_heads(const GpuStep& step, const GpuLayer& layer,
                                             std::int32_t index);
  [[nodiscard]] Expected<void> rotate_halves(const GpuStep& step, const GpuLayer& layer,
                                             bool has_window);
  [[nodiscard]] Expected<void> rotate_neighbours(const GpuStep& step);
  /// Of layers that do not rotate.
  [[nodiscard]] Expected<void> tune_queries(const GpuStep& step);
  /// By all the calls that the step's plan has for this kind of layers; adds the batch to `args`.
  template <class Args, class Kernel>
  [[nodiscard]] Expected<void> queue_attention(const GpuStep& step, const AttentionKind& kind,
                                               Args args, Kernel kernel);
  [[nodiscard]] Expected<void> attend(const GpuStep& step, const PagedKv& kv,
                                      const AttentionKind& kind);
  [[nodiscard]] Expected<void> project_latent_queries(const GpuStep& step, const GpuLayer& layer);
  [[nodiscard]] Expected<void> project_latent_rows(const GpuStep& step, const GpuLayer& layer);
  [[nodiscard]] Expected<void> attend_latents(const GpuStep& step, const GpuLayer& layer,
                                              const PagedLatents& kv, const AttentionKind& kind);
  [[nodiscard]] Expected<void> choose_experts(const GpuStep& step, const GpuLayer& layer);
  /// The feed-forward network that every token goes through, or that of shared experts, from
  /// `normed` to `delta`.
  [[nodiscard]] Expected<void> run_dense(const GpuStep& step, const GpuLayer& layer);
  [[nodiscard]] Expected<void> run_shared(const GpuStep& step, const GpuLayer& layer);
  /// The experts that the router chooses, from `normed` to `delta`.
  [[nodiscard]] Expected<void> run_experts(const GpuStep& step, const GpuLayer& layer);

  [[nodiscard]] Expected<void> run_attention(const GpuStep& step, std::int32_t index,
                                             std::byte* kv_base, const KvLayout& layout);
  [[nodiscard]] Expected<void> run_feed_forward(const GpuStep& step, std::int32_t index);
  [[nodiscard]] Expected<void> choose(const GpuStep& step);

  Device& device_;
  ModelConfig config_;
  LayerGroups groups_;
  GpuLimits limits_;
  GpuWeights weights_;  ///< offsets in `region_`
  std::vector<AttentionKind> kinds_;
  GpuBufferOffsets offsets_;  ///< in `memory_`
  const std::byte* region_;
  GpuAdapters adapters_;  ///< in `region_`
  float rotation_factor_, sliding_rotation_factor_;
  std::byte* memory_ = nullptr;
  DeviceStream stream_ = nullptr;
};

}  // namespace kvhive
