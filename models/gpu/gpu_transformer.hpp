#pragma once
// A decoder of the Llama family over a paged KV cache, on a GPU: the forward pass of
// models/transformer.hpp and the sampler behind it, queued on one stream. Products are the
// device's (cuBLASLt) or, batch-invariant, ours; all kernels of ours are in kernels/cuda.
//
// The residual stream is f32, what products read is of the model's dtype. Nothing but the device's
// products lets a row's bits depend on the batch around it.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>

#include "base/expected.hpp"
#include "base/ids.hpp"
#include "config/kv_layout.hpp"
#include "device/device.hpp"
#include "device/device_memory.hpp"
#include "kernels/sampling.hpp"
#include "models/forward_batch.hpp"
#include "models/gpu/gpu_limits.hpp"
#include "models/model_config.hpp"

namespace kvhive {

/// What a step chose for each of its logit rows; borrowed until the next start().
struct GpuSamples {
  std::span<const TokenId> tokens;
  std::span<const float> logprobs;
  std::int32_t K = 0;                         ///< the most that any row wanted
  std::span<const TokenId> likeliest_tokens;  ///< [rows, K], as SampleArgs has them
  std::span<const float> likeliest_logprobs;
};

/// Called before what reads or writes a layer's KV is queued: makes the stream wait for it, say.
using BeforeLayer = std::function<Expected<void>(std::int32_t layer)>;

/// Move-only; used by one thread at a time. After Errc::device_lost it is of no more use.
class GpuTransformer {
 public:
  /// Allocates all that a step needs, once.
  /// \param device   outlives this
  /// \param weights  the mapped region that upload_weights() has filled, here or in another process
  static Expected<GpuTransformer> create(Device& device, const ModelConfig& config,
                                         const std::byte* weights, const GpuLimits& limits);
  /// What create() allocates on the device.
  static std::size_t device_bytes(const ModelConfig& config, const GpuLimits& limits);

  GpuTransformer(GpuTransformer&&) noexcept;
  GpuTransformer& operator=(GpuTransformer&&) noexcept;
  ~GpuTransformer();

  const ModelConfig& config() const;
  /// Where steps run: what a step reads is to be there in this stream's order. start() marks it.
  const OrderedStream& stream() const;

  /// Queues a step and returns; the batch has been copied then. Not while one is under way.
  /// \param choices  one for each of batch.logit_rows
  /// \param kv_base  block 0 of a device arena laid out as `layout` says
  Expected<void> start(const ForwardBatch& batch, std::span<const SampleChoice> choices,
                       std::byte* kv_base, const KvLayout& layout,
                       const BeforeLayer& before_layer = {});
  /// Until the step that start() has queued is done.
  Expected<GpuSamples> wait();
  /// [logit rows, vocab] of the last step, on the device.
  const float* logits() const;

 private:
  struct State;

  explicit GpuTransformer(std::unique_ptr<State> state);

  std::unique_ptr<State> state_;
};

}  // namespace kvhive
