#pragma once
// Where the buffers of a GpuTransformer lie in its one allocation of device memory.

#include <cstddef>
#include <cstdint>

#include "base/ids.hpp"
#include "models/gpu/gpu_limits.hpp"
#include "models/layer_groups.hpp"
#include "models/config/model_config.hpp"

namespace kvhive {

/// Alignment of each part of a step's inputs.
inline constexpr std::size_t kInputAlignment = 16;

/// A step's outputs, one array after the other; K as in GpuSamples.
struct OutputParts {
  TokenId* tokens;            ///< [rows]
  float* logprobs;            ///< [rows]
  TokenId* likeliest;         ///< [rows, K]
  float* likeliest_logprobs;  ///< [rows, K]
};
OutputParts output_parts(std::byte* at, std::size_t rows, std::size_t K);
std::size_t output_bytes(std::size_t rows, std::size_t K);

/// Offsets in bytes from the allocation's start, each aligned to 256. Only a model with experts or
/// with latent attention has the buffers for these.
struct GpuBufferOffsets {
  std::size_t residual, delta;  ///< f32 [T, hidden]
  std::size_t normed;  ///< [T, hidden] of the model's dtype, as all that follow unless stated
  std::size_t q;       ///< [T, H, D]
  std::size_t heads;   ///< [T, H, size of a value] attention's output
  std::size_t k, v;    ///< [T, G, D]
  /// [T, 2 * widest] gate, then up, and [T, widest] of feed-forward networks; of experts likewise
  /// [T * experts per token].
  std::size_t gate_up, inner;
  struct {
    std::size_t router;           ///< f32 [T, experts]
    std::size_t chosen, weights;  ///< [T, experts per token] numbers, and f32
    std::size_t pairs, places;    ///< [T * experts per token]
    std::size_t first;            ///< [experts + 1]
    std::size_t out;              ///< [T * experts per token, hidden]
  } experts{};
  struct {
    std::size_t unnormed_q, narrow_q;  ///< [T, query rank] f32, then normed
    std::size_t kv_row;                ///< f32 [T, rank + rope]
    std::size_t latent, shared_key;    ///< f32 [T, rank], [T, rope]
    std::size_t row_q, attended;       ///< [T, H, rank + rope], [T, H, rank]
  } latents{};
  std::size_t narrow;  ///< f32 [T, most rank of an adapter]
  std::size_t wanted;  ///< [logit rows, hidden] the normalised rows whose logits are wanted
  std::size_t logits;  ///< f32 [logit rows, vocab]
  std::size_t attention_states, outputs;  ///< scratch of attention, f32; outputs as in OutputParts
  std::size_t inputs;  ///< everything that a step copies to the device; reaches to the end
  std::size_t bytes = 0;
  std::int32_t most_states = 0;  ///< states that attention_states has room for

  GpuBufferOffsets(const ModelConfig& config, const LayerGroups& groups, const GpuLimits& limits);

  std::size_t input_bytes() const { return bytes - inputs; }

 private:
  void take_attention(const ModelConfig& config, std::size_t T);
  void take_feed_forward(const ModelConfig& config, std::size_t T);
  std::size_t take(std::size_t count);
};

}  // namespace kvhive
