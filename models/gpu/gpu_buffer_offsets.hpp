#pragma once
// The device memory of a GpuTransformer: one allocation, what a step needs at offsets in it.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/ids.hpp"
#include "models/gpu/gpu_limits.hpp"
#include "models/model_config.hpp"

namespace kvhive {

/// The attention windows that a model's layers have.
std::vector<std::int32_t> windows_of(const ModelConfig& config);

/// A step's inputs and outputs lie one behind the other, each part aligned.
inline constexpr std::size_t kInputAlignment = 16;

/// A step's outputs, one behind the other; K as in GpuSamples.
struct OutputParts {
  TokenId* tokens;            ///< [rows]
  float* logprobs;            ///< [rows]
  TokenId* likeliest;         ///< [rows, K]
  float* likeliest_logprobs;  ///< [rows, K]
};
OutputParts output_parts(std::byte* at, std::size_t rows, std::size_t K);
std::size_t output_bytes(std::size_t rows, std::size_t K);

/// Offsets in bytes, aligned to 256.
struct GpuBufferOffsets {
  std::size_t residual, delta;  ///< f32 [T, hidden]
  std::size_t normed;           ///< [T, hidden] of the model's dtype, as those that follow
  std::size_t q, heads;         ///< [T, H, D]
  std::size_t k, v;             ///< [T, G, D]
  std::size_t gate_up, inner;   ///< [T, 2 * intermediate], [T, intermediate]
  std::size_t wanted;           ///< [logit rows, hidden]
  std::size_t logits;           ///< f32 [logit rows, vocab]
  std::size_t attention_states, outputs;  ///< f32; as GpuSamples
  std::size_t inputs;                     ///< to the end: all that a step copies to the device
  std::size_t bytes = 0;
  std::int32_t most_states = 0;  ///< that attention_states has room for

  GpuBufferOffsets(const ModelConfig& config, const GpuLimits& limits);

  std::size_t input_bytes() const { return bytes - inputs; }

 private:
  std::size_t take(std::size_t count);
};

}  // namespace kvhive
