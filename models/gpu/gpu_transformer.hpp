#pragma once
// A decoder (architecture.hpp lists the families) over a paged KV cache, on a GPU: the forward pass
// of models/transformer.hpp and then the sampler, queued on one stream. Matrix products are
// computed by the device's library (cuBLASLt) or, if batch-invariant, by this project's kernel;
// those of experts, and of the heads of latent attention, always by the latter. All other kernels
// are in kernels/cuda.
//
// The residual is f32; inputs of products have the model's dtype. A row's bits depend on the batch
// only through the device's library.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "base/expected.hpp"
#include "base/ids.hpp"
#include "config/kv_layout.hpp"
#include "device/device.hpp"
#include "device/device_memory.hpp"
#include "kernels/sampling.hpp"
#include "models/forward_batch.hpp"
#include "models/gpu/before_layer.hpp"
#include "models/gpu/gpu_adapters.hpp"
#include "models/gpu/gpu_limits.hpp"
#include "models/config/model_config.hpp"

namespace kvhive {

/// The tokens that a step chose, one for each logit row. Borrowed until the next start().
struct GpuSamples {
  std::span<const TokenId> tokens;
  std::span<const float> logprobs;
  std::int32_t K = 0;                         ///< the most likeliest tokens that any row asked for
  std::span<const TokenId> likeliest_tokens;  ///< [rows, K], laid out as in SampleArgs
  std::span<const float> likeliest_logprobs;
};

/// Move-only. Used by one thread at a time. Useless after Errc::device_lost.
class GpuTransformer {
 public:
  /// Allocates all memory that steps need.
  ///
  /// \param device outlives this
  /// \param weights the mapped region that upload_weights() has filled, in this or in another
  /// process
  /// \param groups  where the layers' caches are; the arena's layout is that of these groups
  /// \param adapters  in that region; no rank is above that of `limits`
  [[nodiscard]] static Expected<GpuTransformer> create(Device& device, const ModelConfig& config,
                                                       const std::byte* weights,
                                                       const GpuLimits& limits,
                                                       const LayerGroups& groups,
                                                       GpuAdapters adapters = {});
  /// The device memory that create() allocates.
  static std::size_t device_bytes(const ModelConfig& config, const GpuLimits& limits,
                                  const LayerGroups& groups);

  GpuTransformer(GpuTransformer&&) noexcept;
  GpuTransformer& operator=(GpuTransformer&&) noexcept;
  ~GpuTransformer();

  const ModelConfig& config() const;
  /// The stream that steps run on. Data that a step reads must be ready in this stream's order.
  /// start() marks it.
  const OrderedStream& stream() const;

  /// Queues a step and returns; the batch has been copied by then. Call wait() before the next
  /// start().
  ///
  /// \param choices one for each of batch.logit_rows
  /// \param kv_base address of block 0 of a device arena with this layout
  [[nodiscard]] Expected<void> start(const ForwardBatch& batch,
                                     std::span<const SampleChoice> choices, std::byte* kv_base,
                                     const KvLayout& layout, const BeforeLayer& before_layer = {});
  /// Waits until the step that start() queued is done.
  [[nodiscard]] Expected<GpuSamples> wait();
  /// Logits of the last step, [logit rows, vocab], in device memory.
  const float* logits() const;
  /// Copies some of these rows to the host, and waits for them. Call it after wait().
  ///
  /// \param to  [rows, vocab]
  [[nodiscard]] Expected<void> read_logits(std::span<const std::size_t> rows,
                                           std::span<float> to) const;

  /// Logits of further tokens of the last step, as Transformer::further_logits(). Call it after
  /// wait(), and after read_logits(): it overwrites what logits() has.
  ///
  /// \param rows    rows of that batch
  /// \param logits  [rows, vocab] on the host
  [[nodiscard]] Expected<void> further_logits(std::span<const std::int32_t> rows,
                                              std::span<float> logits);

 private:
  struct State;

  explicit GpuTransformer(std::unique_ptr<State> state);

  std::unique_ptr<State> state_;
};

}  // namespace kvhive
